// out[pair] = x[row(pair)] · W_eᵀ by tiles: each threadgroup a block of pairs of one expert, whose weights are read once for all.

template <uint TILE>
kernel void expert_linear_tile(
    device const float* x [[buffer(0)]],
    device const uint* offsets [[buffer(1)]],
    device const uint* order [[buffer(2)]],
    device const uchar* elements [[buffer(3)]],
    device const uchar* scales [[buffer(4)]],
    device const uchar* biases [[buffer(5)]],
    device float* out [[buffer(6)]],
    constant ExpertArguments& args [[buffer(7)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]])
{
    threadgroup float left[TILE * TILE_STRIDE];
    threadgroup float right[TILE_OUTPUTS * TILE_STRIDE];
    const Block block = block_of<TILE>(offsets, args.experts, group.y, lane);
    if (block.pairs == 0) {
        return;
    }
    const Weights w = weights_of(elements, scales, biases, args, block.expert);
    const uint first = group.x * TILE_OUTPUTS;
    const uint place = loaded_row<TILE>(tid);
    const uint pair = order[block.first + min(place, block.pairs - 1)];
    device const float* row = x + pair / args.pairs_per_row * args.inputs;
    tile_products<TILE>(row, place < block.pairs, args.inputs, args.outputs, w, first, tid, simdgroup, left, right);
    for (uint i = tid; i < block.pairs * TILE_OUTPUTS; i += TILE_THREADS) {
        const uint output = first + i % TILE_OUTPUTS;
        if (output < args.outputs) {
            const uint at = order[block.first + i / TILE_OUTPUTS];
            out[at * args.outputs + output] = right[i / TILE_OUTPUTS * OUT_STRIDE + i % TILE_OUTPUTS];
        }
    }
}

template [[host_name("expert_linear_tile16")]] kernel decltype(expert_linear_tile<16>) expert_linear_tile<16>;
template [[host_name("expert_linear_tile32")]] kernel decltype(expert_linear_tile<32>) expert_linear_tile<32>;
