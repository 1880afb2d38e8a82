// out = x · Wᵀ. A simdgroup takes four outputs of one activation row; its lanes take runs of eight inputs in turn.

struct LinearArguments {
    uint outputs;
    uint inputs;
    uint elements_at;  // bytes from each buffer's place to its first element
    uint scales_at;
    uint biases_at;
};

kernel void linear_rows(
    device const float* x [[buffer(0)]],
    device const uchar* elements [[buffer(1)]],
    device const uchar* scales [[buffer(2)]],
    device const uchar* biases [[buffer(3)]],
    device float* out [[buffer(4)]],
    constant LinearArguments& args [[buffer(5)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]])
{
    const Weights w = {elements + args.elements_at, scales + args.scales_at, biases + args.biases_at};
    const uint first = (group.x * simdgroups + simdgroup) * ROWS;
    float sums[ROWS];
    row_products(x + group.y * args.inputs, args.inputs, args.outputs, w, format(), first, lane, sums);
    for (uint r = 0; r < ROWS; r++) {
        const float sum = simd_sum(sums[r]);
        if (lane == 0 && first + r < args.outputs) {
            out[group.y * args.outputs + first + r] = sum;
        }
    }
}
