// out[t] = row tokens[t] of the table; one thread an element.

struct EmbedArguments {
    uint cols;
    uint elements_at;  // bytes from each buffer's place to its first element
    uint scales_at;
    uint biases_at;
};

kernel void embed(
    device const uint* tokens [[buffer(0)]],
    device const uchar* elements [[buffer(1)]],
    device const uchar* scales [[buffer(2)]],
    device const uchar* biases [[buffer(3)]],
    device float* out [[buffer(4)]],
    constant EmbedArguments& args [[buffer(5)]],
    uint3 at [[thread_position_in_grid]])
{
    if (at.x >= args.cols) {
        return;
    }
    const ulong row = tokens[at.y];
    const Format f = format();
    const uint bytes = f.type == F32 ? 4 : 2;
    float value = 0.0f;
    if (f.dense != 0) {
        value = float_at(elements + args.elements_at + row * args.cols * bytes, f.type, at.x);
    } else {
        float codes[RUN];
        unpack(elements + args.elements_at + row * (args.cols * f.bits / 8), f.bits, at.x / RUN, codes);
        const uint groups = args.cols / f.group;
        const float scale = float_at(scales + args.scales_at + row * groups * bytes, f.type, at.x / f.group);
        const float bias = float_at(biases + args.biases_at + row * groups * bytes, f.type, at.x / f.group);
        value = scale * codes[at.x % RUN] + bias;
    }
    out[at.y * args.cols + at.x] = value;
}
