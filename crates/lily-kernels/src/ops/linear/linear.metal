// out = x · Wᵀ for few rows: a set of lanes takes four outputs of up to four activation rows, which share each load of the
// weights; its lanes take runs of inputs in turn.

struct LinearArguments {
    uint outputs;
    uint inputs;
    uint rows;
    uint lanes;  // of a set
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
    const Work here = work(group.x, simdgroup, simdgroups, lane, args.lanes);
    const uint first_row = group.y * X_ROWS;
    const PlainRows rows = {x + first_row * args.inputs, args.inputs, args.rows - first_row - 1};
    float sums[MOST_X_ROWS * ROWS];
    row_products(rows, args.inputs, args.outputs, w, format(), here, sums);
    for (uint row = 0; row < X_ROWS; row++) {
        for (uint r = 0; r < ROWS; r++) {
            const float sum = sum_of(sums[row * ROWS + r], args.lanes);
            if (here.lane == 0 && first_row + row < args.rows && here.first + r < args.outputs) {
                out[(first_row + row) * args.outputs + here.first + r] = sum;
            }
        }
    }
}
