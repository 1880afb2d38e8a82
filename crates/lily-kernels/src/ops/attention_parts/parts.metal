// What the kernels that make parts share: what each simdgroup keeps of a head, and how the simdgroups of a threadgroup put it
// together; after `kv.metal` and `cut.metal`.

struct AttentionPartsArguments {
    uint q_heads;
    uint spans;  // threadgroups of a row
    float scale;
};

constant uint PACK [[function_constant(1)]];  // query heads of a threadgroup, at most MOST_HEADS
constant constexpr uint MOST_HEADS = 4;
constant constexpr uint MOST_ELEMENTS = 8;  // of a lane: head_dim is at most 256
constant constexpr uint SIMDGROUPS = 4;

// What a simdgroup has of one head.
struct Partial {
    float values[MOST_ELEMENTS];
    float largest;
    float total;
};

inline void begin(thread Partial& p) {
    p.largest = -numeric_limits<float>::infinity();
    p.total = 0.0f;
    for (uint e = 0; e < MOST_ELEMENTS; e++) {
        p.values[e] = 0.0f;
    }
}

// The part of one head, from its simdgroups' values (each at element `i` of its run of `outputs`), maxima and totals.
inline void put_together(
    threadgroup const float* outputs, threadgroup const float* maxima, threadgroup const float* totals, uint dim, uint tid, device float* to) {
    float largest = maxima[0];
    for (uint s = 1; s < SIMDGROUPS; s++) {
        largest = max(largest, maxima[s]);
    }
    float total = 0.0f;
    for (uint s = 0; s < SIMDGROUPS; s++) {
        total += totals[s] * precise::exp(maxima[s] - largest);
    }
    for (uint i = tid; i < dim; i += SIMDGROUPS * 32) {
        float sum = 0.0f;
        for (uint s = 0; s < SIMDGROUPS; s++) {
            sum += outputs[s * 32 * MOST_ELEMENTS + i] * precise::exp(maxima[s] - largest);
        }
        to[i] = sum;
    }
    if (tid == 0) {
        to[dim] = largest;
        to[dim + 1] = total;
    }
}
