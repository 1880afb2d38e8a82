// Parts of each head, put together part by part; one thread an element of the result.

struct SplitHeadsArguments {
    uint x_cols;
    uint out_cols;
    uint heads;
    uint stride;
    uint start;
    uint widths[3];
};

kernel void split_heads(
    device const float* x [[buffer(0)]],
    device float* out [[buffer(1)]],
    constant SplitHeadsArguments& args [[buffer(2)]],
    uint3 at [[thread_position_in_grid]])
{
    if (at.x >= args.out_cols) {
        return;
    }
    uint rest = at.x;
    uint first = args.start;
    uint part = 0;
    while (rest >= args.heads * args.widths[part]) {
        rest -= args.heads * args.widths[part];
        first += args.widths[part];
        part++;
    }
    const uint head = rest / args.widths[part];
    out[at.y * args.out_cols + at.x] = x[at.y * args.x_cols + head * args.stride + first + rest % args.widths[part]];
}
