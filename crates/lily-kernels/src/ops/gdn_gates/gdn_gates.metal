// beta = σ(b), decay = exp(−exp(A_log) · softplus(a + dt_bias)); one thread a token and head.

struct GdnGatesArguments {
    uint heads;
};

kernel void gdn_gates(
    device const float* a [[buffer(0)]],
    device const float* b [[buffer(1)]],
    device const float* a_log [[buffer(2)]],
    device const float* dt_bias [[buffer(3)]],
    device float* decay [[buffer(4)]],
    device float* beta [[buffer(5)]],
    constant GdnGatesArguments& args [[buffer(6)]],
    uint3 at [[thread_position_in_grid]])
{
    if (at.x >= args.heads) {
        return;
    }
    const uint i = at.y * args.heads + at.x;
    const float x = a[i] + dt_bias[at.x];
    // log(1 + e^x) without overflow; log1p of a small number is the number.
    const float tail = precise::exp(-fabs(x));
    const float log1p = tail < 1e-4f ? tail : precise::log(1.0f + tail);
    const float softplus = max(x, 0.0f) + log1p;
    decay[i] = precise::exp(-precise::exp(a_log[at.x]) * softplus);
    beta[i] = sigmoid(b[i]);
}
