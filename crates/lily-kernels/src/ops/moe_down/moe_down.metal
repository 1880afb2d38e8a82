// out = residual + (Σ_r weights[t, r] · down_e(r) · inner[t·K + r] + σ(gate) · shared · shared_inner), few rows: a set of lanes takes four
// outputs of all rows, and goes through the distinct experts, so that each one's weights are read once.

constant uint SHARED_WEIGHT [[function_constant(2)]];

struct MoeDownArguments {
    uint inputs;
    uint shared_inputs;
    uint outputs;
    uint rows;
    uint top_k;
    uint lanes;  // of a set
    uint elements_at;  // bytes from each buffer's place to the first expert
    uint scales_at;
    uint biases_at;
    uint elements_step;  // bytes from one expert to the next
    uint scales_step;
    uint biases_step;
    uint shared_elements_at;
    uint shared_scales_at;
    uint shared_biases_at;
};

// The inner rows of the pairs that chose an expert.
struct PairRows {
    PlainRows rows;
    thread const uint* pairs;
    float4 four(uint row, uint i) const thread {
        return rows.four(pairs[row], i);
    }
    float one(uint row, uint i) const thread {
        return rows.one(pairs[row], i);
    }
};

kernel void moe_down_rows(
    device const float* inner [[buffer(0)]],
    device const float* shared_inner [[buffer(1)]],
    device const uint* experts [[buffer(2)]],
    device const float* weights [[buffer(3)]],
    device const float* gate [[buffer(4)]],
    device const float* residual [[buffer(5)]],
    device const uchar* elements [[buffer(6)]],
    device const uchar* scales [[buffer(7)]],
    device const uchar* biases [[buffer(8)]],
    device const uchar* shared_elements [[buffer(9)]],
    device const uchar* shared_scales [[buffer(10)]],
    device const uchar* shared_biases [[buffer(11)]],
    device float* out [[buffer(12)]],
    constant MoeDownArguments& args [[buffer(13)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]])
{
    const Work here = work(group.x, simdgroup, simdgroups, lane, args.lanes);
    const uint pairs = args.rows * args.top_k;
    float sums[MOST_X_ROWS * ROWS];
    float totals[MOST_X_ROWS * ROWS] = {};
    for (uint pair = 0; pair < pairs; pair++) {
        const uint expert = experts[pair];
        uint chosen[MOST_X_ROWS] = {pair, pair, pair, pair};  // by row of the step; some pair where the row chose another
        float factors[MOST_X_ROWS] = {};
        uint hits = 0;  // rows that chose the expert, as bits
        bool earlier = false;
        for (uint other = 0; other < pairs; other++) {
            if (experts[other] == expert) {
                earlier = earlier || other < pair;
                chosen[other / args.top_k] = other;
                factors[other / args.top_k] = weights[other];
                hits |= 1u << other / args.top_k;
            }
        }
        // Uniform in the simdgroup.
        if (earlier) {
            continue;
        }
        const ulong e = expert;
        const Weights w = {elements + args.elements_at + e * args.elements_step, scales + args.scales_at + e * args.scales_step,
                           biases + args.biases_at + e * args.biases_step};
        const PairRows rows = {{inner, args.inputs, pairs - 1}, chosen};
        row_products(rows, args.inputs, args.outputs, w, format(), here, sums);
        for (uint row = 0; row < X_ROWS; row++) {
            for (uint r = 0; r < ROWS && (hits >> row & 1) != 0; r++) {
                totals[row * ROWS + r] += factors[row] * sums[row * ROWS + r];
            }
        }
    }
    const Weights w = {
        shared_elements + args.shared_elements_at, shared_scales + args.shared_scales_at, shared_biases + args.shared_biases_at};
    const PlainRows rows = {shared_inner, args.shared_inputs, args.rows - 1};
    row_products(rows, args.shared_inputs, args.outputs, w, format_of(SHARED_WEIGHT), here, sums);
    for (uint row = 0; row < X_ROWS; row++) {
        const float strength = sigmoid(gate[min(row, args.rows - 1)]);
        for (uint r = 0; r < ROWS; r++) {
            const float total = sum_of(totals[row * ROWS + r] + strength * sums[row * ROWS + r], args.lanes);
            if (here.lane == 0 && row < args.rows && here.first + r < args.outputs) {
                const uint at = row * args.outputs + here.first + r;
                out[at] = residual[at] + total;
            }
        }
    }
}
