// out = scale · code + bias as bf16, a whole stack of matrices: a thread takes one span of a row.

struct ExpandArguments {
    uint outputs;
    uint inputs;
    uint elements_at;  // bytes from each buffer's place to the first matrix
    uint scales_at;
    uint biases_at;
    uint elements_step;  // bytes from one matrix to the next
    uint scales_step;
    uint biases_step;
};

kernel void expand_weights(
    device const uchar* elements [[buffer(0)]],
    device const uchar* scales [[buffer(1)]],
    device const uchar* biases [[buffer(2)]],
    device bfloat* out [[buffer(3)]],
    constant ExpandArguments& args [[buffer(4)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint3 threads [[threads_per_threadgroup]])
{
    const uint run = group.x * threads.x + tid;
    if (run * SPAN >= args.inputs) {
        return;
    }
    const Format f = format();
    const ulong matrix = group.y / args.outputs;
    const uint row = group.y % args.outputs;
    device const uchar* codes = elements + args.elements_at + matrix * args.elements_step;
    const uint at = row * (args.inputs / f.group) + run * SPAN / f.group;
    const float scale = float_at(scales + args.scales_at + matrix * args.scales_step, f.type, at);
    const float bias = float_at(biases + args.biases_at + matrix * args.biases_step, f.type, at);
    uint words[MOST_BITS];
    load_words(codes + ulong(row) * (args.inputs * f.bits / 8) + run * 4 * f.bits, f, words);
    device bfloat* to = out + ulong(group.y) * args.inputs + run * SPAN;
    for (uint i = 0; i < SPAN; i++) {
        to[i] = static_cast<bfloat>(scale * code_of(words, f.bits, i) + bias);
    }
}
