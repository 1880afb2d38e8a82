// out[r, h] = x[r, h] · rsqrt(mean(x²) + eps) · weight, one threadgroup a run.
// Threads take elements i, i + threads, …; sums go over simdgroups in order, so that a run's result is its own.

struct RmsNormArguments {
    uint x_cols;
    uint out_cols;
    uint dim;
    uint stride;
    float eps;
};

kernel void rms_norm(
    device const float* x [[buffer(0)]],
    device const float* weight [[buffer(1)]],
    device float* out [[buffer(2)]],
    constant RmsNormArguments& args [[buffer(3)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]])
{
    threadgroup float partial[32];
    device const float* run = x + group.y * args.x_cols + group.x * args.stride;
    device float* to = out + group.y * args.out_cols + group.x * args.dim;
    float squares = 0.0f;
    for (uint i = tid; i < args.dim; i += threads) {
        squares += run[i] * run[i];
    }
    squares = simd_sum(squares);
    if (lane == 0) {
        partial[simdgroup] = squares;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float total = 0.0f;
    for (uint i = 0; i < simdgroups; i++) {
        total += partial[i];
    }
    const float scale = precise::rsqrt(total / static_cast<float>(args.dim) + args.eps);
    for (uint i = tid; i < args.dim; i += threads) {
        to[i] = run[i] * scale * weight[i];
    }
}
