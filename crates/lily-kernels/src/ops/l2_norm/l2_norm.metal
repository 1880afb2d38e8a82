// x · rsqrt(Σx² + 1e-6) of each query and key head, queries times dim^−½; one simdgroup a head.

struct L2NormArguments {
    uint x_cols;
    uint out_cols;
    uint dim;
};

kernel void l2_norm(
    device const float* x [[buffer(0)]],
    device float* out [[buffer(1)]],
    constant L2NormArguments& args [[buffer(2)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]])
{
    device const float* head = x + group.y * args.x_cols + group.x * args.dim;
    float squares = 0.0f;
    for (uint i = lane; i < args.dim; i += 32) {
        squares += head[i] * head[i];
    }
    const bool is_query = group.x * args.dim < args.out_cols / 2;
    const float factor = is_query ? precise::rsqrt(static_cast<float>(args.dim)) : 1.0f;
    const float scale = precise::rsqrt(simd_sum(squares) + 1e-6f) * factor;
    for (uint i = lane; i < args.dim; i += 32) {
        out[group.y * args.out_cols + group.x * args.dim + i] = head[i] * scale;
    }
}
