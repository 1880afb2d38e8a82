// out = x · Wᵀ with f32 activations and sums. A simdgroup takes ROWS outputs of one activation row; its lanes take runs of
// eight inputs in turn. Weights are dense, or affine codes: value = scale · code + bias, so a group's part of the sum is
// scale · Σ code·x + bias · Σ x, and no weight is ever expanded in memory. Their bytes may start anywhere.

constant uint DENSE [[function_constant(0)]];   // 1: elements of type TYPE; 0: codes, whose scales are of type TYPE
constant uint TYPE [[function_constant(1)]];
constant uint BITS [[function_constant(2)]];
constant uint GROUP [[function_constant(3)]];

struct LinearArguments {
    uint outputs;
    uint inputs;
    uint weight_shift;  // bytes from each buffer's place to its first element
    uint scales_shift;
    uint biases_shift;
};

constant constexpr uint ROWS = 4;
constant constexpr uint RUN = 8;

// Eight codes of a row's little-endian bit stream; they fill BITS bytes.
inline void unpack(device const uchar* row, uint run, thread float* codes) {
    device const uchar* bytes = row + run * BITS;
    ulong word = 0;
    for (uint i = 0; i < BITS; i++) {
        word |= static_cast<ulong>(bytes[i]) << (8 * i);
    }
    for (uint i = 0; i < RUN; i++) {
        codes[i] = static_cast<float>(static_cast<uint>(word >> (BITS * i)) & ((1u << BITS) - 1));
    }
}

kernel void linear_rows(
    device const float* x [[buffer(0)]],
    device const uchar* weight [[buffer(1)]],
    device const uchar* scales [[buffer(2)]],
    device const uchar* biases [[buffer(3)]],
    device float* out [[buffer(4)]],
    constant LinearArguments& args [[buffer(5)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]])
{
    const uint first = (group.x * simdgroups + simdgroup) * ROWS;
    device const float* activations = x + group.y * args.inputs;
    float sums[ROWS] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (uint run = lane; run * RUN < args.inputs; run += 32) {
        float values[RUN];
        float total = 0.0f;
        for (uint i = 0; i < RUN; i++) {
            const uint at = run * RUN + i;
            values[i] = at < args.inputs ? activations[at] : 0.0f;
            total += values[i];
        }
        for (uint r = 0; r < ROWS && first + r < args.outputs; r++) {
            const uint row = first + r;
            float sum = 0.0f;
            if (DENSE != 0) {
                for (uint i = 0; i < RUN && run * RUN + i < args.inputs; i++) {
                    sum += values[i] * float_at(weight + args.weight_shift, TYPE, row * args.inputs + run * RUN + i);
                }
                sums[r] += sum;
            } else {
                float codes[RUN];
                unpack(weight + args.weight_shift + row * (args.inputs * BITS / 8), run, codes);
                for (uint i = 0; i < RUN; i++) {
                    sum += values[i] * codes[i];
                }
                const uint at = row * (args.inputs / GROUP) + run * RUN / GROUP;
                const float scale = float_at(scales + args.scales_shift, TYPE, at);
                const float bias = float_at(biases + args.biases_shift, TYPE, at);
                sums[r] += scale * sum + bias * total;
            }
        }
    }
    for (uint r = 0; r < ROWS; r++) {
        const float sum = simd_sum(sums[r]);
        if (lane == 0 && first + r < args.outputs) {
            out[group.y * args.outputs + first + r] = sum;
        }
    }
}
