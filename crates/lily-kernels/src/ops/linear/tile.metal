// What matmuls of many rows share, after `matmul.metal`. A threadgroup of four simdgroups takes TILE rows and 64 outputs, each
// simdgroup all rows and 16 outputs as matrices of 8 × 8. Inputs come 32 at a time through threadgroup memory, weights decoded
// on the way: each is read once for all rows of the tile and never expanded in device memory. Sums are f32.

constant constexpr uint TILE_OUTPUTS = 64;
constant constexpr uint TILE_INPUTS = 32;  // of a step
constant constexpr uint TILE_THREADS = 128;
// From one row of threadgroup memory to the next, so that a column of a matrix does not lie in one bank.
constant constexpr uint TILE_STRIDE = 36;
constant constexpr uint OUT_STRIDE = 68;
// Inputs of an output that a thread decodes in a step: they share a scale, for groups have at least 32.
constant constexpr uint DECODED = 16;

// A simdgroup's sums.
template <uint TILE>
struct Sums {
    simdgroup_float8x8 of[TILE / 8][2];
};

template <uint TILE>
inline void clear(thread Sums<TILE>& sums) {
    for (uint r = 0; r < TILE / 8; r++) {
        sums.of[r][0] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        sums.of[r][1] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
}

// Which row of the tile a thread loads: the same at every step.
template <uint TILE>
inline uint loaded_row(uint tid) {
    return tid * TILE / TILE_THREADS;
}

// Inputs k … k + 31 of every row, of which a thread takes TILE / 4; zeros past the ends.
template <uint TILE>
inline void load_inputs(device const float* row, bool is_row, uint inputs, uint k, uint tid, threadgroup float* to) {
    constexpr uint EACH = TILE / 4;
    const uint column = tid * EACH % TILE_INPUTS;
    const uint start = k + column;
    threadgroup float* values = to + loaded_row<TILE>(tid) * TILE_STRIDE + column;
    if (is_row && inputs % 4 == 0 && start + EACH <= inputs) {
        for (uint i = 0; i < EACH; i += 4) {
            *reinterpret_cast<threadgroup float4*>(values + i) = *reinterpret_cast<device const float4*>(row + start + i);
        }
    } else {
        for (uint i = 0; i < EACH; i++) {
            values[i] = is_row && start + i < inputs ? row[start + i] : 0.0f;
        }
    }
}

// The words that hold the codes of DECODED inputs.
inline void load_half_span(device const uchar* from, Format f, thread uint* words) {
    if (f.align >= 4 && f.bits % 2 == 0) {
        for (uint i = 0; i < f.bits / 2; i++) {
            words[i] = reinterpret_cast<device const uint*>(from)[i];
        }
    } else {
        for (uint i = 0; i < (f.bits + 1) / 2; i++) {
            words[i] = 0;
        }
        for (uint i = 0; i < f.bits * 2; i++) {
            words[i / 4] |= uint(from[i]) << (8 * (i % 4));
        }
    }
}

// The same of 64 outputs' weights.
template <uint STRIDE, class T>
inline void load_weights(Weights w, Format f, uint outputs, uint inputs, uint first, uint k, uint tid, threadgroup T* to) {
    const uint row = first + tid / 2;
    const uint start = k + tid % 2 * DECODED;
    threadgroup T* values = to + tid / 2 * STRIDE + tid % 2 * DECODED;
    if (row >= outputs || start >= inputs) {
        for (uint i = 0; i < DECODED; i++) {
            values[i] = static_cast<T>(0.0f);
        }
    } else if (f.dense != 0) {
        for (uint i = 0; i < DECODED; i++) {
            values[i] = static_cast<T>(start + i < inputs ? float_at(w.elements, f.type, row * inputs + start + i) : 0.0f);
        }
    } else {
        const uint at = row * (inputs / f.group) + start / f.group;
        const float scale = float_at(w.scales, f.type, at);
        const float bias = float_at(w.biases, f.type, at);
        uint words[DECODED * MOST_BITS / 32];
        load_half_span(w.elements + ulong(row) * (inputs * f.bits / 8) + start * f.bits / 8, f, words);
        for (uint i = 0; i < DECODED; i++) {
            values[i] = static_cast<T>(scale * code_of(words, f.bits, i) + bias);
        }
    }
}

// sums += rows · weightsᵀ of one step.
template <uint TILE>
inline void multiply(threadgroup const float* left, threadgroup const float* right, uint simdgroup, thread Sums<TILE>& sums) {
    for (uint k = 0; k < TILE_INPUTS; k += 8) {
        simdgroup_float8x8 weights[2];
        for (uint i = 0; i < 2; i++) {
            simdgroup_load(weights[i], right + (simdgroup * 16 + i * 8) * TILE_STRIDE + k, TILE_STRIDE, ulong2(0, 0), true);
        }
        for (uint r = 0; r < TILE / 8; r++) {
            simdgroup_float8x8 rows;
            simdgroup_load(rows, left + r * 8 * TILE_STRIDE + k, TILE_STRIDE);
            simdgroup_multiply_accumulate(sums.of[r][0], rows, weights[0], sums.of[r][0]);
            simdgroup_multiply_accumulate(sums.of[r][1], rows, weights[1], sums.of[r][1]);
        }
    }
}

template <uint TILE>
inline void store(thread Sums<TILE>& sums, uint simdgroup, threadgroup float* to) {
    for (uint r = 0; r < TILE / 8; r++) {
        simdgroup_store(sums.of[r][0], to + r * 8 * OUT_STRIDE + simdgroup * 16, OUT_STRIDE);
        simdgroup_store(sums.of[r][1], to + r * 8 * OUT_STRIDE + simdgroup * 16 + 8, OUT_STRIDE);
    }
}

// The products of a tile: into `right`, rows OUT_STRIDE apart. `row` is the one that this thread loads.
template <uint TILE>
inline void tile_products(
    device const float* row, bool is_row, uint inputs, uint outputs, Weights w, uint first, uint tid, uint simdgroup, threadgroup float* left, threadgroup float* right) {
    Sums<TILE> sums;
    clear<TILE>(sums);
    for (uint k = 0; k < inputs; k += TILE_INPUTS) {
        load_inputs<TILE>(row, is_row, inputs, k, tid, left);
        load_weights<TILE_STRIDE>(w, format(), outputs, inputs, first, k, tid, right);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        multiply<TILE>(left, right, simdgroup, sums);
        // The next step, or the products, overwrite what this one reads.
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    store<TILE>(sums, simdgroup, right);
    threadgroup_barrier(mem_flags::mem_threadgroup);
}
