// out = residual + (Σ_r weights[t, r] · x[t·K + r] + σ(gate) · shared); one thread an element.

struct MoeOutputArguments {
    uint cols;
    uint top_k;
};

kernel void moe_output(
    device const float* x [[buffer(0)]],
    device const float* weights [[buffer(1)]],
    device const float* shared [[buffer(2)]],
    device const float* gate [[buffer(3)]],
    device const float* residual [[buffer(4)]],
    device float* out [[buffer(5)]],
    constant MoeOutputArguments& args [[buffer(6)]],
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
    const uint i = at.y * args.cols + at.x;
    out[i] = residual[i] + (sum + sigmoid(gate[at.y]) * shared[i]);
}
