// Which weights a pair meets; after `matmul.metal`.

struct ExpertArguments {
    uint outputs;
    uint inputs;
    uint experts;
    uint pairs_per_row;
    uint lanes;
    uint elements_at;  // bytes from each buffer's place to the first expert
    uint scales_at;
    uint biases_at;
    uint elements_step;  // bytes from one expert to the next
    uint scales_step;
    uint biases_step;
};

// The expert whose pairs lie around place i of the order.
inline uint expert_of(device const uint* offsets, uint experts, uint i) {
    uint low = 0;
    uint high = experts;
    while (high - low > 1) {
        const uint middle = (low + high) / 2;
        if (offsets[middle] <= i) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

inline Weights weights_of(
    device const uchar* elements, device const uchar* scales, device const uchar* biases, constant ExpertArguments& args, uint expert) {
    const ulong e = expert;
    return {elements + args.elements_at + e * args.elements_step, scales + args.scales_at + e * args.scales_step,
            biases + args.biases_at + e * args.biases_step};
}
