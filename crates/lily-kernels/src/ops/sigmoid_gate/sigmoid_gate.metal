// out = x ⊙ σ(gate), the gates of a head at h·stride + start; one thread an element.

struct SigmoidGateArguments {
    uint cols;
    uint gate_cols;
    uint dim;
    uint stride;
    uint start;
};

kernel void sigmoid_gate(
    device const float* x [[buffer(0)]],
    device const float* gate [[buffer(1)]],
    device float* out [[buffer(2)]],
    constant SigmoidGateArguments& args [[buffer(3)]],
    uint3 at [[thread_position_in_grid]])
{
    if (at.x < args.cols) {
        const uint i = at.y * args.cols + at.x;
        const uint head = at.x / args.dim;
        out[i] = x[i] * sigmoid(gate[at.y * args.gate_cols + head * args.stride + args.start + at.x % args.dim]);
    }
}
