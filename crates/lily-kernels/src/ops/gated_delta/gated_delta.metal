// S ← decay·S; δ = beta·(v − S·k); S ← S + δ·kᵀ; y = S·q, token by token: one threadgroup a value head. A simdgroup keeps ROWS
// rows of the state in registers, lanes hold elements lane, lane + 32, …; the state is read once and written once a chunk.
// With NORM the head's outputs go on to y · rsqrt(mean(y²) + eps) · weight · silu(z) without leaving the chip.

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
    uint simdgroup [[simdgroup_index_in_threadgroup]])
{
    threadgroup float outputs[MOST_VALUES];
    const uint head = group.x;
    const uint k_head = head * args.k_heads / args.v_heads;
    const uint first = simdgroup * ROWS;
    device const float* before = state_in + (head * args.v_dim + first) * args.k_dim;
    float state[ROWS][MOST_ELEMENTS];
    for (uint r = 0; r < ROWS && first + r < args.v_dim; r++) {
        for (uint i = lane, e = 0; i < args.k_dim; i += 32, e++) {
            state[r][e] = before[r * args.k_dim + i];
        }
    }
    for (uint t = args.first_row; t < args.first_row + args.rows; t++) {
        device const float* queries = qk + (t * 2 * args.k_heads + k_head) * args.k_dim;
        device const float* keys = queries + args.k_heads * args.k_dim;
        const float kept = decay[t * args.v_heads + head];
        const float strength = beta[t * args.v_heads + head];
        for (uint r = 0; r < ROWS; r++) {
            const bool is_row = first + r < args.v_dim;
            float seen = 0.0f;
            for (uint i = lane, e = 0; is_row && i < args.k_dim; i += 32, e++) {
                state[r][e] *= kept;
                seen += state[r][e] * keys[i];
            }
            seen = simd_sum(seen);
            float y = 0.0f;
            if (is_row) {
                const float value = v[t * args.v_cols + args.v_start + head * args.v_dim + first + r];
                const float delta = strength * (value - seen);
                for (uint i = lane, e = 0; i < args.k_dim; i += 32, e++) {
                    state[r][e] += delta * keys[i];
                    y += state[r][e] * queries[i];
                }
            }
            y = simd_sum(y);
            if (lane == 0 && is_row) {
                if (NORM != 0) {
                    outputs[first + r] = y;
                } else {
                    out[(t * args.v_heads + head) * args.v_dim + first + r] = y;
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
            for (uint r = lane; r < ROWS && first + r < args.v_dim; r += 32) {
                const uint i = (t * args.v_heads + head) * args.v_dim + first + r;
                out[i] = outputs[first + r] * scale * weight[first + r] * silu(z[i]);
            }
            // The next token writes what this one reads.
            threadgroup_barrier(mem_flags::mem_threadgroup);
        }
    }
    device float* after = state_out + (head * args.v_dim + first) * args.k_dim;
    for (uint r = 0; r < ROWS && first + r < args.v_dim; r++) {
        for (uint i = lane, e = 0; i < args.k_dim; i += 32, e++) {
            after[r * args.k_dim + i] = state[r][e];
        }
    }
}
