// out[pair] = silu(x[row] · gate_eᵀ) ⊙ (x[row] · up_eᵀ): neither projection reaches memory.

// The format of the up projection, which may be another one.
constant uint UP_DENSE [[function_constant(4)]];
constant uint UP_TYPE [[function_constant(5)]];
constant uint UP_BITS [[function_constant(6)]];
constant uint UP_GROUP [[function_constant(7)]];

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
    const uint first = (group.x * simdgroups + simdgroup) * ROWS;
    device const float* row = x + pair / gate_args.pairs_per_row * gate_args.inputs;
    const Format up_format = {UP_DENSE, UP_TYPE, UP_BITS, UP_GROUP};
    float gates[ROWS];
    float ups[ROWS];
    row_products(row, gate_args.inputs, gate_args.outputs, gate, format(), first, lane, gates);
    row_products(row, gate_args.inputs, gate_args.outputs, up, up_format, first, lane, ups);
    for (uint r = 0; r < ROWS; r++) {
        const float gated = silu(simd_sum(gates[r])) * simd_sum(ups[r]);
        if (lane == 0 && first + r < gate_args.outputs) {
            out[pair * gate_args.outputs + first + r] = gated;
        }
    }
}
