// out = x · Wᵀ for many rows with Metal 4's tensor operations: as the tiles, but both sides are rounded to bf16 and the
// product is the hardware's. Sums are f32. Which thread holds which sum is asked, not known.

struct TileArguments {
    uint outputs;
    uint inputs;
    uint rows;
    uint elements_at;  // bytes from each buffer's place to its first element
    uint scales_at;
    uint biases_at;
};

constant constexpr uint TENSOR_ROWS = 32;

// Inputs k … k + 31 of 32 rows as bf16, eight for a thread; zeros past the ends.
inline void load_rounded(device const float* x, uint rows, uint inputs, uint first, uint k, uint tid, threadgroup bfloat* to) {
    const uint row = first + tid / 4;
    for (uint i = 0; i < 8; i++) {
        const uint at = k + tid % 4 * 8 + i;
        to[tid * 8 + i] = static_cast<bfloat>(row < rows && at < inputs ? x[row * inputs + at] : 0.0f);
    }
}

kernel void linear_tensor(
    device const float* x [[buffer(0)]],
    device const uchar* elements [[buffer(1)]],
    device const uchar* scales [[buffer(2)]],
    device const uchar* biases [[buffer(3)]],
    device float* out [[buffer(4)]],
    constant TileArguments& args [[buffer(5)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]])
{
    threadgroup bfloat left[TENSOR_ROWS * TILE_INPUTS];
    threadgroup bfloat right[TILE_OUTPUTS * TILE_INPUTS];
    const Weights w = {elements + args.elements_at, scales + args.scales_at, biases + args.biases_at};
    const uint first_row = group.y * TENSOR_ROWS;
    const uint first = group.x * TILE_OUTPUTS;

    constexpr auto descriptor = mpp::tensor_ops::matmul2d_descriptor(
        TENSOR_ROWS, TILE_OUTPUTS, TILE_INPUTS, false, true, false, mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate);
    mpp::tensor_ops::matmul2d<descriptor, execution_simdgroups<4>> product;
    // Dimension 0 is the contiguous one.
    auto rows = tensor(left, dextents<int, 2>(TILE_INPUTS, TENSOR_ROWS));
    auto weights = tensor(right, dextents<int, 2>(TILE_INPUTS, TILE_OUTPUTS));
    auto sums = product.get_destination_cooperative_tensor<
        remove_addrspace_t<decltype(rows)>, remove_addrspace_t<decltype(weights)>, float>();
    for (ushort i = 0; i < sums.get_capacity(); i++) {
        if (sums.is_valid_element(i)) {
            sums[i] = 0.0f;
        }
    }
    for (uint k = 0; k < args.inputs; k += TILE_INPUTS) {
        load_rounded(x, args.rows, args.inputs, first_row, k, tid, left);
        load_weights<TILE_INPUTS>(w, format(), args.outputs, args.inputs, first, k, tid, right);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        product.run(rows, weights, sums);
        // The next step overwrites what this one reads.
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    for (ushort i = 0; i < sums.get_capacity(); i++) {
        if (sums.is_valid_element(i)) {
            const auto at = sums.get_multidimensional_index(i);
            const uint row = first_row + static_cast<uint>(at[1]);
            const uint output = first + static_cast<uint>(at[0]);
            if (row < args.rows && output < args.outputs) {
                out[row * args.outputs + output] = sums[i];
            }
        }
    }
}
