// S ← decay·S; δ = beta·(v − S·k); S ← S + δ·kᵀ; y = S·q, token by token. A simdgroup keeps ROWS rows of a head's state in
// registers, lanes hold elements lane, lane + 32, …; the state is read once and written once a chunk. Rows of a state know
// nothing of each other: a head may be spread over threadgroups, but for NORM, with which one threadgroup has all of it and
// the outputs go on to y · rsqrt(mean(y²) + eps) · weight · silu(z) without leaving the chip.
// BLOCK > 0 is what that is compared with: the state goes through memory after so many tokens.

struct GatedDeltaArguments {
    uint k_heads;
    uint v_heads;
    uint k_dim;
    uint v_dim;
    uint v_cols;
    uint v_start;
    uint first_row;
    uint rows;
    float eps;
};

constant uint NORM [[function_constant(0)]];
constant constexpr uint ROWS = 4;
constant constexpr uint MOST_ELEMENTS = 8;  // of a lane: k_dim is at most 256
constant constexpr uint MOST_VALUES = 128;  // v_dim

// One token of one row of the state, spread over the lanes; returns y.
inline float advance(
    thread float* state, device const float* keys, device const float* queries, uint dim, float value, float kept, float strength, uint lane) {
    float seen = 0.0f;
    for (uint i = lane, e = 0; i < dim; i += 32, e++) {
        state[e] *= kept;
        seen += state[e] * keys[i];
    }
    const float delta = strength * (value - simd_sum(seen));
    float y = 0.0f;
    for (uint i = lane, e = 0; i < dim; i += 32, e++) {
        state[e] += delta * keys[i];
        y += state[e] * queries[i];
    }
    return simd_sum(y);
}

// ROWS rows of a state, of which `rows` exist. The others are zeros, so that all lanes meet.
inline void load_state(device const float* from, uint rows, uint dim, uint lane, thread float (*state)[MOST_ELEMENTS]) {
    for (uint r = 0; r < ROWS; r++) {
        for (uint i = lane, e = 0; i < dim; i += 32, e++) {
            state[r][e] = r < rows ? from[r * dim + i] : 0.0f;
        }
    }
}

inline void store_state(device float* to, uint rows, uint dim, uint lane, thread float (*state)[MOST_ELEMENTS]) {
    for (uint r = 0; r < rows; r++) {
        for (uint i = lane, e = 0; i < dim; i += 32, e++) {
            to[r * dim + i] = state[r][e];
        }
    }
}

template <uint BLOCK>
kernel void gated_delta(
    device const float* qk [[buffer(0)]],
    device const float* v [[buffer(1)]],
    device const float* decay [[buffer(2)]],
    device const float* beta [[buffer(3)]],
    device const float* state_in [[buffer(4)]],
    device float* state_out [[buffer(5)]],
    device const float* z [[buffer(6)]],
    device const float* weight [[buffer(7)]],
    device float* out [[buffer(8)]],
    constant GatedDeltaArguments& args [[buffer(9)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]])
{
    threadgroup float outputs[MOST_VALUES];
    const uint head = group.x;
    const uint k_head = head * args.k_heads / args.v_heads;
    const uint first = (group.y * simdgroups + simdgroup) * ROWS;
    const uint rows = first < args.v_dim ? min(args.v_dim - first, ROWS) : 0;
    const uint at_state = (head * args.v_dim + first) * args.k_dim;
    float state[ROWS][MOST_ELEMENTS];
    load_state(state_in + at_state, rows, args.k_dim, lane, state);
    for (uint t = args.first_row; t < args.first_row + args.rows; t++) {
        device const float* queries = qk + (t * 2 * args.k_heads + k_head) * args.k_dim;
        device const float* keys = queries + args.k_heads * args.k_dim;
        const float kept = decay[t * args.v_heads + head];
        const float strength = beta[t * args.v_heads + head];
        for (uint r = 0; r < ROWS; r++) {
            const bool is_row = r < rows;
            const uint at = head * args.v_dim + (is_row ? first + r : 0);
            const float value = v[t * args.v_cols + args.v_start + at];
            const float y = advance(state[r], keys, queries, args.k_dim, value, kept, strength, lane);
            if (lane == 0 && is_row) {
                if (NORM != 0) {
                    outputs[first + r] = y;
                } else {
                    out[t * args.v_heads * args.v_dim + at] = y;
                }
            }
        }
        if (NORM != 0) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
            float squares = 0.0f;
            for (uint i = lane; i < args.v_dim; i += 32) {
                squares += outputs[i] * outputs[i];
            }
            const float scale = precise::rsqrt(simd_sum(squares) / static_cast<float>(args.v_dim) + args.eps);
            for (uint r = lane; r < rows; r += 32) {
                const uint i = (t * args.v_heads + head) * args.v_dim + first + r;
                out[i] = outputs[first + r] * scale * weight[first + r] * silu(z[i]);
            }
            // The next token writes what this one reads.
            threadgroup_barrier(mem_flags::mem_threadgroup);
        }
        if (BLOCK > 0 && (t - args.first_row + 1) % max(BLOCK, 1u) == 0) {
            store_state(state_out + at_state, rows, args.k_dim, lane, state);
            load_state(state_out + at_state, rows, args.k_dim, lane, state);
        }
    }
    store_state(state_out + at_state, rows, args.k_dim, lane, state);
}

template [[host_name("gated_delta")]] kernel decltype(gated_delta<0>) gated_delta<0>;
template [[host_name("gated_delta_blocks")]] kernel decltype(gated_delta<16>) gated_delta<16>;
