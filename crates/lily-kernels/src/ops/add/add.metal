// out = a + b; one thread an element.

struct AddArguments {
    uint cols;
};

kernel void add(
    device const float* a [[buffer(0)]],
    device const float* b [[buffer(1)]],
    device float* out [[buffer(2)]],
    constant AddArguments& args [[buffer(3)]],
    uint3 at [[thread_position_in_grid]])
{
    if (at.x < args.cols) {
        const uint i = at.y * args.cols + at.x;
        out[i] = a[i] + b[i];
    }
}
