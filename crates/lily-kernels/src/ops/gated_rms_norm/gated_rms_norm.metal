// out = y · rsqrt(mean(y²) + eps) · weight · silu(z), per value head; one simdgroup a head.

struct GatedRmsNormArguments {
    uint cols;
    uint dim;
    float eps;
};

kernel void gated_rms_norm(
    device const float* y [[buffer(0)]],
    device const float* z [[buffer(1)]],
    device const float* weight [[buffer(2)]],
    device float* out [[buffer(3)]],
    constant GatedRmsNormArguments& args [[buffer(4)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]])
{
    const uint first = group.y * args.cols + group.x * args.dim;
    float squares = 0.0f;
    for (uint i = lane; i < args.dim; i += 32) {
        squares += y[first + i] * y[first + i];
    }
    const float scale = precise::rsqrt(simd_sum(squares) / static_cast<float>(args.dim) + args.eps);
    for (uint i = lane; i < args.dim; i += 32) {
        out[first + i] = y[first + i] * scale * weight[i] * silu(z[first + i]);
    }
}
