// Partial rotary embedding, half-split pairing; one thread an element. The angle is one f32 product, as in the model.

struct RopeArguments {
    uint cols;
    uint head_dim;
    uint half_dim;
};

kernel void rope(
    device const float* x [[buffer(0)]],
    device const float* inv_freq [[buffer(1)]],
    device const StepRow* rows [[buffer(2)]],
    device float* out [[buffer(3)]],
    constant RopeArguments& args [[buffer(4)]],
    uint3 at [[thread_position_in_grid]])
{
    if (at.x >= args.cols) {
        return;
    }
    const uint i = at.x % args.head_dim;
    device const float* head = x + at.y * args.cols + (at.x - i);
    out[at.y * args.cols + at.x] = rotated(head, inv_freq, args.half_dim, rows[at.y].position, i);
}
