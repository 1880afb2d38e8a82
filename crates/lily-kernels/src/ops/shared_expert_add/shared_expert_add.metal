// out = x + σ(gate) · shared; one thread an element.

struct SharedExpertAddArguments {
    uint cols;
};

kernel void shared_expert_add(
    device const float* x [[buffer(0)]],
    device const float* shared [[buffer(1)]],
    device const float* gate [[buffer(2)]],
    device float* out [[buffer(3)]],
    constant SharedExpertAddArguments& args [[buffer(4)]],
    uint3 at [[thread_position_in_grid]])
{
    if (at.x < args.cols) {
        const uint i = at.y * args.cols + at.x;
        out[i] = x[i] + sigmoid(gate[at.y]) * shared[i];
    }
}
