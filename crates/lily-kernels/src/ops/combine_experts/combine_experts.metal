// out[t] = Σ_r weights[t, r] · x[t·K + r], in rank order; one thread an element.

struct CombineExpertsArguments {
    uint cols;
    uint top_k;
};

kernel void combine_experts(
    device const float* x [[buffer(0)]],
    device const float* weights [[buffer(1)]],
    device float* out [[buffer(2)]],
    constant CombineExpertsArguments& args [[buffer(3)]],
    uint3 at [[thread_position_in_grid]])
{
    if (at.x >= args.cols) {
        return;
    }
    float sum = 0.0f;
    for (uint r = 0; r < args.top_k; r++) {
        const uint pair = at.y * args.top_k + r;
        sum += weights[pair] * x[pair * args.cols + at.x];
    }
    out[at.y * args.cols + at.x] = sum;
}
