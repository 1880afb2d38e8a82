// out[pair] = silu(x[row] · gate_eᵀ) ⊙ (x[row] · up_eᵀ): neither projection reaches memory.

constant uint UP_WEIGHT [[function_constant(2)]];  // the format of the up projection, which may be another one

kernel void expert_gate_up_rows(
    device const float* x [[buffer(0)]],
    device const uint* offsets [[buffer(1)]],
    device const uint* order [[buffer(2)]],
    device const uchar* gate_elements [[buffer(3)]],
    device const uchar* gate_scales [[buffer(4)]],
    device const uchar* gate_biases [[buffer(5)]],
    device const uchar* up_elements [[buffer(6)]],
    device const uchar* up_scales [[buffer(7)]],
    device const uchar* up_biases [[buffer(8)]],
    device float* out [[buffer(9)]],
    constant ExpertArguments& gate_args [[buffer(10)]],
    constant ExpertArguments& up_args [[buffer(11)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]])
{
    const uint pair = order[group.y];
    const uint expert = expert_of(offsets, gate_args.experts, group.y);
    const Weights gate = weights_of(gate_elements, gate_scales, gate_biases, gate_args, expert);
    const Weights up = weights_of(up_elements, up_scales, up_biases, up_args, expert);
    const Work here = work(group.x, simdgroup, simdgroups, lane, gate_args.lanes);
    const PlainRows row = {x + pair / gate_args.pairs_per_row * gate_args.inputs, gate_args.inputs, 0};
    float gates[MOST_X_ROWS * ROWS];
    float ups[MOST_X_ROWS * ROWS];
    row_products(row, gate_args.inputs, gate_args.outputs, gate, format(), here, gates);
    row_products(row, gate_args.inputs, gate_args.outputs, up, format_of(UP_WEIGHT), here, ups);
    for (uint r = 0; r < ROWS; r++) {
        const float gated = silu(sum_of(gates[r], gate_args.lanes)) * sum_of(ups[r], gate_args.lanes);
        if (here.lane == 0 && here.first + r < gate_args.outputs) {
            out[pair * gate_args.outputs + here.first + r] = gated;
        }
    }
}
