// silu(x · gateᵀ) ⊙ (x · upᵀ) of every chosen expert and, in the last row of threadgroups, of the shared one. A row of threadgroups
// is a pair of token and rank; the first pair of an expert works for all pairs that chose it, and the others have nothing to do.

constant uint UP_WEIGHT [[function_constant(2)]];
constant uint SHARED_GATE_WEIGHT [[function_constant(3)]];
constant uint SHARED_UP_WEIGHT [[function_constant(4)]];

struct MoeGateUpArguments {
    uint inputs;
    uint rows;
    uint top_k;
    uint lanes;  // of a set
    uint outputs;
    uint shared_outputs;
};

// Where a stack of matrices begins, and the bytes from one to the next.
struct StackArguments {
    uint elements_at;
    uint scales_at;
    uint biases_at;
    uint elements_step;
    uint scales_step;
    uint biases_step;
};

inline Weights matrix_of(
    device const uchar* elements, device const uchar* scales, device const uchar* biases, constant StackArguments& args, uint number) {
    const ulong n = number;
    return {elements + args.elements_at + n * args.elements_step, scales + args.scales_at + n * args.scales_step,
            biases + args.biases_at + n * args.biases_step};
}

// The activation rows of the tokens that chose an expert.
struct ChosenRows {
    PlainRows rows;
    uint tokens;  // of four bits each
    uint token(uint row) const thread {
        return tokens >> 4 * row & 15;
    }
    float4 four(uint row, uint i) const thread {
        return rows.four(token(row), i);
    }
    float one(uint row, uint i) const thread {
        return rows.one(token(row), i);
    }
};

// silu(gate) ⊙ up of `count` rows, to `out + places[row]`.
template <class X>
inline void gated_products(
    X x, uint inputs, uint outputs, Weights gate, Format gate_format, Weights up, Format up_format, Work here, uint count, thread const uint* places, device float* out) {
    float gates[MOST_X_ROWS * ROWS];
    float ups[MOST_X_ROWS * ROWS];
    row_products(x, inputs, outputs, gate, gate_format, here, gates);
    row_products(x, inputs, outputs, up, up_format, here, ups);
    for (uint row = 0; row < X_ROWS; row++) {
        for (uint r = 0; r < ROWS; r++) {
            const float gated = silu(sum_of(gates[row * ROWS + r], here.lanes)) * sum_of(ups[row * ROWS + r], here.lanes);
            if (here.lane == 0 && row < count && here.first + r < outputs) {
                out[places[row] * outputs + here.first + r] = gated;
            }
        }
    }
}

kernel void moe_gate_up_rows(
    device const float* x [[buffer(0)]],
    device const uint* experts [[buffer(1)]],
    device const uchar* gate_elements [[buffer(2)]],
    device const uchar* gate_scales [[buffer(3)]],
    device const uchar* gate_biases [[buffer(4)]],
    device const uchar* up_elements [[buffer(5)]],
    device const uchar* up_scales [[buffer(6)]],
    device const uchar* up_biases [[buffer(7)]],
    device const uchar* shared_gate_elements [[buffer(8)]],
    device const uchar* shared_gate_scales [[buffer(9)]],
    device const uchar* shared_gate_biases [[buffer(10)]],
    device const uchar* shared_up_elements [[buffer(11)]],
    device const uchar* shared_up_scales [[buffer(12)]],
    device const uchar* shared_up_biases [[buffer(13)]],
    device float* out [[buffer(14)]],
    device float* shared_out [[buffer(15)]],
    constant MoeGateUpArguments& args [[buffer(16)]],
    constant StackArguments& gate_args [[buffer(17)]],
    constant StackArguments& up_args [[buffer(18)]],
    constant StackArguments& shared_gate_args [[buffer(19)]],
    constant StackArguments& shared_up_args [[buffer(20)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]])
{
    const Work here = work(group.x, simdgroup, simdgroups, lane, args.lanes);
    const PlainRows rows = {x, args.inputs, args.rows - 1};
    uint places[MOST_X_ROWS];
    if (group.y == args.rows * args.top_k) {
        for (uint row = 0; row < MOST_X_ROWS; row++) {
            places[row] = row;
        }
        const Weights gate = matrix_of(shared_gate_elements, shared_gate_scales, shared_gate_biases, shared_gate_args, 0);
        const Weights up = matrix_of(shared_up_elements, shared_up_scales, shared_up_biases, shared_up_args, 0);
        gated_products(
            rows, args.inputs, args.shared_outputs, gate, format_of(SHARED_GATE_WEIGHT), up, format_of(SHARED_UP_WEIGHT), here, args.rows, places,
            shared_out);
        return;
    }
    const uint expert = experts[group.y];
    uint count = 0;
    uint tokens = 0;
    bool earlier = false;
    for (uint pair = 0; pair < args.rows * args.top_k; pair++) {
        if (experts[pair] == expert) {
            earlier = earlier || pair < group.y;
            tokens |= pair / args.top_k << 4 * count;
            places[count] = pair;
            count++;
        }
    }
    // Uniform in the threadgroup.
    if (earlier) {
        return;
    }
    const ChosenRows chosen = {rows, tokens};
    const Weights gate = matrix_of(gate_elements, gate_scales, gate_biases, gate_args, expert);
    const Weights up = matrix_of(up_elements, up_scales, up_biases, up_args, expert);
    gated_products(chosen, args.inputs, args.outputs, gate, format(), up, format_of(UP_WEIGHT), here, count, places, out);
}
