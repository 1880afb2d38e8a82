// out[pair] = silu(x[row] · gate_eᵀ) ⊙ (x[row] · up_eᵀ) by tiles: each threadgroup a block of pairs of one expert. Inputs are
// loaded once for both projections, neither of which reaches memory.

constant uint UP_WEIGHT [[function_constant(2)]];  // the format of the up projection, which may be another one

// gates = silu(gates) ⊙ ups. A lane holds the same elements of both matrices, whichever they are.
template <uint TILE>
inline void gate(thread Sums<TILE>& gates, thread Sums<TILE>& ups) {
    for (uint i = 0; i < TILE / 8 * 2; i++) {
        for (uint e = 0; e < 2; e++) {
            const float value = gates.of[i / 2][i % 2].thread_elements()[e];
            gates.of[i / 2][i % 2].thread_elements()[e] = silu(value) * ups.of[i / 2][i % 2].thread_elements()[e];
        }
    }
}

template <uint TILE>
kernel void expert_gate_up_tile(
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
    constant ExpertArguments& args [[buffer(10)]],
    constant ExpertArguments& up_args [[buffer(11)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]])
{
    threadgroup float left[TILE * TILE_STRIDE];
    threadgroup float right[TILE_OUTPUTS * TILE_STRIDE];
    threadgroup float up_right[TILE_OUTPUTS * TILE_STRIDE];
    const Block block = block_of<TILE>(offsets, args.experts, group.y, lane);
    if (block.pairs == 0) {
        return;
    }
    const Weights gate_weights = weights_of(gate_elements, gate_scales, gate_biases, args, block.expert);
    const Weights up_weights = weights_of(up_elements, up_scales, up_biases, up_args, block.expert);
    const uint first = group.x * TILE_OUTPUTS;
    const uint place = loaded_row<TILE>(tid);
    const uint pair = order[block.first + min(place, block.pairs - 1)];
    device const float* row = x + pair / args.pairs_per_row * args.inputs;
    Sums<TILE> gates;
    Sums<TILE> ups;
    clear<TILE>(gates);
    clear<TILE>(ups);
    for (uint k = 0; k < args.inputs; k += TILE_INPUTS) {
        load_inputs<TILE>(row, place < block.pairs, args.inputs, k, tid, left);
        load_weights<TILE_STRIDE>(gate_weights, format(), args.outputs, args.inputs, first, k, tid, right);
        load_weights<TILE_STRIDE>(up_weights, format_of(UP_WEIGHT), args.outputs, args.inputs, first, k, tid, up_right);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        multiply<TILE>(left, right, simdgroup, gates);
        multiply<TILE>(left, up_right, simdgroup, ups);
        // The next step, or the products, overwrite what this one reads.
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    gate<TILE>(gates, ups);
    store<TILE>(gates, simdgroup, right);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = tid; i < block.pairs * TILE_OUTPUTS; i += TILE_THREADS) {
        const uint output = first + i % TILE_OUTPUTS;
        if (output < args.outputs) {
            const uint at = order[block.first + i / TILE_OUTPUTS];
            out[at * args.outputs + output] = right[i / TILE_OUTPUTS * OUT_STRIDE + i % TILE_OUTPUTS];
        }
    }
}

template [[host_name("expert_gate_up_tile16")]] kernel decltype(expert_gate_up_tile<16>) expert_gate_up_tile<16>;
template [[host_name("expert_gate_up_tile32")]] kernel decltype(expert_gate_up_tile<32>) expert_gate_up_tile<32>;
