// out = silu(gate) ⊙ up; one thread an element.

struct SwiGluArguments {
    uint cols;
};

kernel void swiglu(
    device const float* gate [[buffer(0)]],
    device const float* up [[buffer(1)]],
    device float* out [[buffer(2)]],
    constant SwiGluArguments& args [[buffer(3)]],
    uint3 at [[thread_position_in_grid]])
{
    if (at.x < args.cols) {
        const uint i = at.y * args.cols + at.x;
        out[i] = silu(gate[i]) * up[i];
    }
}
