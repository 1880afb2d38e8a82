// out[i] = x[rows[i]]; one thread an element.

struct GatherRowsArguments {
    uint cols;
};

kernel void gather_rows(
    device const float* x [[buffer(0)]],
    device const uint* rows [[buffer(1)]],
    device float* out [[buffer(2)]],
    constant GatherRowsArguments& args [[buffer(3)]],
    uint3 at [[thread_position_in_grid]])
{
    if (at.x < args.cols) {
        out[at.y * args.cols + at.x] = x[rows[at.y] * args.cols + at.x];
    }
}
