// out[pair] = x[row(pair)] · W_eᵀ, pairs in the order of their experts. As `linear_rows`, each pair with its expert's matrix.

kernel void expert_linear_rows(
    device const float* x [[buffer(0)]],
    device const uint* offsets [[buffer(1)]],
    device const uint* order [[buffer(2)]],
    device const uchar* elements [[buffer(3)]],
    device const uchar* scales [[buffer(4)]],
    device const uchar* biases [[buffer(5)]],
    device float* out [[buffer(6)]],
    constant ExpertArguments& args [[buffer(7)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]])
{
    const uint pair = order[group.y];
    const Weights w = weights_of(elements, scales, biases, args, expert_of(offsets, args.experts, group.y));
    const Work here = work(group.x, simdgroup, simdgroups, lane, args.lanes);
    const PlainRows row = {x + pair / args.pairs_per_row * args.inputs, args.inputs, 0};
    float sums[MOST_X_ROWS * ROWS];
    row_products(row, args.inputs, args.outputs, w, format(), here, sums);
    for (uint r = 0; r < ROWS; r++) {
        const float sum = sum_of(sums[r], args.lanes);
        if (here.lane == 0 && here.first + r < args.outputs) {
            out[pair * args.outputs + here.first + r] = sum;
        }
    }
}
