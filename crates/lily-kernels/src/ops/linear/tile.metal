// out = x · Wᵀ for many rows: a threadgroup of four simdgroups takes 32 rows and 32 outputs, each simdgroup a quarter as 2 × 2
// matrices of 8 × 8. Inputs come 32 at a time through threadgroup memory, weights decoded on the way, so that each is read
// once for 32 rows and never expanded in device memory. Sums are f32.

struct TileArguments {
    uint outputs;
    uint inputs;
    uint rows;
    uint elements_at;  // bytes from each buffer's place to its first element
    uint scales_at;
    uint biases_at;
};

constant constexpr uint TILE = 32;  // rows, outputs, and inputs of a step
constant constexpr uint THREADS = 128;

// Rows first … first + 31 of the activations, from input k on; zeros past the ends.
inline void load_rows(device const float* x, uint rows, uint inputs, uint first, uint k, uint tid, threadgroup float* to) {
    for (uint i = tid; i < TILE * TILE; i += THREADS) {
        const uint row = first + i / TILE;
        const uint at = k + i % TILE;
        to[i] = row < rows && at < inputs ? x[row * inputs + at] : 0.0f;
    }
}

// The same of the weights: a thread decodes one run of eight.
inline void load_weights(Weights w, Format f, uint outputs, uint inputs, uint first, uint k, uint tid, threadgroup float* to) {
    const uint row = first + tid / (TILE / RUN);
    const uint start = k + tid % (TILE / RUN) * RUN;
    threadgroup float* values = to + tid * RUN;
    float codes[RUN] = {};
    float scale = 1.0f;
    float bias = 0.0f;
    if (row < outputs && start < inputs) {
        if (f.dense != 0) {
            for (uint i = 0; i < RUN && start + i < inputs; i++) {
                codes[i] = float_at(w.elements, f.type, row * inputs + start + i);
            }
        } else {
            unpack(w.elements + row * (inputs * f.bits / 8), f.bits, start / RUN, codes);
            const uint at = row * (inputs / f.group) + start / f.group;
            scale = float_at(w.scales, f.type, at);
            bias = float_at(w.biases, f.type, at);
        }
    }
    for (uint i = 0; i < RUN; i++) {
        values[i] = scale * codes[i] + bias;
    }
}

kernel void linear_tile(
    device const float* x [[buffer(0)]],
    device const uchar* elements [[buffer(1)]],
    device const uchar* scales [[buffer(2)]],
    device const uchar* biases [[buffer(3)]],
    device float* out [[buffer(4)]],
    constant TileArguments& args [[buffer(5)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]])
{
    threadgroup float left[TILE * TILE];
    threadgroup float right[TILE * TILE];
    const Weights w = {elements + args.elements_at, scales + args.scales_at, biases + args.biases_at};
    const uint first_row = group.y * TILE;
    const uint first_output = group.x * TILE;
    const uint row = simdgroup / 2 * 16;
    const uint column = simdgroup % 2 * 16;
    simdgroup_float8x8 sums[2][2];
    for (uint i = 0; i < 4; i++) {
        sums[i / 2][i % 2] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
    for (uint k = 0; k < args.inputs; k += TILE) {
        load_rows(x, args.rows, args.inputs, first_row, k, tid, left);
        load_weights(w, format(), args.outputs, args.inputs, first_output, k, tid, right);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint step = 0; step < TILE; step += 8) {
            simdgroup_float8x8 rows[2];
            simdgroup_float8x8 weights[2];
            for (uint i = 0; i < 2; i++) {
                simdgroup_load(rows[i], left + (row + i * 8) * TILE + step, TILE);
                simdgroup_load(weights[i], right + (column + i * 8) * TILE + step, TILE, ulong2(0, 0), true);
            }
            for (uint i = 0; i < 4; i++) {
                simdgroup_multiply_accumulate(sums[i / 2][i % 2], rows[i / 2], weights[i % 2], sums[i / 2][i % 2]);
            }
        }
        // The next step overwrites what this one reads.
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    for (uint i = 0; i < 4; i++) {
        simdgroup_store(sums[i / 2][i % 2], left + (row + i / 2 * 8) * TILE + column + i % 2 * 8, TILE);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = tid; i < TILE * TILE; i += THREADS) {
        const uint at = first_row + i / TILE;
        const uint output = first_output + i % TILE;
        if (at < args.rows && output < args.outputs) {
            out[at * args.outputs + output] = left[i];
        }
    }
}
