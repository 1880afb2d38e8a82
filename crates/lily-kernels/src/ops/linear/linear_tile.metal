// out = x · Wᵀ for many rows, by tiles.

struct TileArguments {
    uint outputs;
    uint inputs;
    uint rows;
    uint elements_at;  // bytes from each buffer's place to its first element
    uint scales_at;
    uint biases_at;
};

template <uint TILE>
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
    threadgroup float left[TILE * TILE_STRIDE];
    threadgroup float right[TILE_OUTPUTS * TILE_STRIDE];
    const Weights w = {elements + args.elements_at, scales + args.scales_at, biases + args.biases_at};
    const uint first_row = group.y * TILE;
    const uint first = group.x * TILE_OUTPUTS;
    const uint row = first_row + loaded_row<TILE>(tid);
    tile_products<TILE>(x + row * args.inputs, row < args.rows, args.inputs, args.outputs, w, first, tid, simdgroup, left, right);
    for (uint i = tid; i < TILE * TILE_OUTPUTS; i += TILE_THREADS) {
        const uint at = first_row + i / TILE_OUTPUTS;
        const uint output = first + i % TILE_OUTPUTS;
        if (at < args.rows && output < args.outputs) {
            out[at * args.outputs + output] = right[i / TILE_OUTPUTS * OUT_STRIDE + i % TILE_OUTPUTS];
        }
    }
}

template [[host_name("linear_tile16")]] kernel decltype(linear_tile<16>) linear_tile<16>;
template [[host_name("linear_tile32")]] kernel decltype(linear_tile<32>) linear_tile<32>;
