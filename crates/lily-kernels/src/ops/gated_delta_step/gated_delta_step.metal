// One token of one sequence: convolution and silu of the channels that a part of a value head needs, gates, norms of its key and
// query, S ← decay·S; δ = beta·(v − S·k); S ← S + δ·kᵀ; y = S·q, and y ⊙ weight ⊙ silu(z) with the sum of y². A threadgroup takes
// PART rows of a head's state, each of its simdgroups ROWS rows in registers, read once and written once. Threadgroups that need
// the same channels convolve them each for themselves; the first one keeps the state of the convolution.

struct GatedDeltaStepArguments {
    uint k_heads;
    uint v_heads;
    uint k_dim;
    uint v_dim;
    uint taps;
    uint row;  // of the step
    float eps;
};

constant constexpr uint PART = 32;
constant constexpr uint ROWS = 4;
constant constexpr uint MOST_K_DIM = 256;
constant constexpr uint MOST_ELEMENTS = 8;  // of a lane

// A channel after convolution and silu; with `keep` its raw values go to the state of the next step.
inline float convolved(
    device const float* x, device const float* weight, device const float* before, device float* after, uint taps, uint channels, uint c, bool keep) {
    float sum = 0.0f;
    for (uint j = 0; j + 1 < taps; j++) {
        sum += weight[j * channels + c] * before[j * channels + c];
        if (keep && j > 0) {
            after[(j - 1) * channels + c] = before[j * channels + c];
        }
    }
    if (keep) {
        after[(taps - 2) * channels + c] = x[c];
    }
    return silu(sum + weight[(taps - 1) * channels + c] * x[c]);
}

// Elements lane, lane + 32, … of a head, normed.
inline void unit(threadgroup const float* head, uint dim, float factor, uint lane, thread float* out) {
    float squares = 0.0f;
    for (uint i = lane, e = 0; i < dim; i += 32, e++) {
        out[e] = head[i];
        squares += out[e] * out[e];
    }
    const float scale = precise::rsqrt(simd_sum(squares) + 1e-6f) * factor;
    for (uint i = lane, e = 0; i < dim; i += 32, e++) {
        out[e] *= scale;
    }
}

inline float decay_of(float a, float a_log, float dt_bias) {
    const float x = a + dt_bias;
    // log(1 + e^x) without overflow; log1p of a small number is the number.
    const float tail = precise::exp(-fabs(x));
    const float log1p = tail < 1e-4f ? tail : precise::log(1.0f + tail);
    return precise::exp(-precise::exp(a_log) * (max(x, 0.0f) + log1p));
}

// One row of the state: read, advanced, written; returns y.
inline float advance(
    device const float* before, device float* after, thread const float* key, thread const float* query, uint dim, float value, float kept, float strength, uint lane) {
    float state[MOST_ELEMENTS];
    float seen = 0.0f;
    for (uint i = lane, e = 0; i < dim; i += 32, e++) {
        state[e] = before[i] * kept;
        seen += state[e] * key[e];
    }
    const float delta = strength * (value - simd_sum(seen));
    float y = 0.0f;
    for (uint i = lane, e = 0; i < dim; i += 32, e++) {
        state[e] += delta * key[e];
        y += state[e] * query[e];
        after[i] = state[e];
    }
    return simd_sum(y);
}

// Where a threadgroup's channels are.
struct Channels {
    uint query;
    uint key;
    uint value;
    uint all;
};

inline Channels channels_of(constant GatedDeltaStepArguments& args, uint head, uint first) {
    const uint k_all = args.k_heads * args.k_dim;
    const uint k_at = head * args.k_heads / args.v_heads * args.k_dim;
    return {k_at, k_all + k_at, 2 * k_all + head * args.v_dim + first, 2 * k_all + args.v_heads * args.v_dim};
}

kernel void gated_delta_step(
    device const float* x [[buffer(0)]],
    device const float* conv_weight [[buffer(1)]],
    device const float* conv_in [[buffer(2)]],
    device float* conv_out [[buffer(3)]],
    device const float* a [[buffer(4)]],
    device const float* b [[buffer(5)]],
    device const float* a_log [[buffer(6)]],
    device const float* dt_bias [[buffer(7)]],
    device const float* state_in [[buffer(8)]],
    device float* state_out [[buffer(9)]],
    device const float* z [[buffer(10)]],
    device const float* weight [[buffer(11)]],
    device float* out [[buffer(12)]],
    device float* squares [[buffer(13)]],
    constant GatedDeltaStepArguments& args [[buffer(14)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]])
{
    threadgroup float queries[MOST_K_DIM];
    threadgroup float keys[MOST_K_DIM];
    threadgroup float values[PART];
    threadgroup float sums[32];
    const uint head = group.x;
    const uint first = group.y * PART;
    const Channels at = channels_of(args, head, first);
    device const float* raw = x + args.row * at.all;
    const bool keeps_keys = head % (args.v_heads / args.k_heads) == 0 && group.y == 0;
    for (uint i = tid; i < args.k_dim; i += threads) {
        queries[i] = convolved(raw, conv_weight, conv_in, conv_out, args.taps, at.all, at.query + i, keeps_keys);
        keys[i] = convolved(raw, conv_weight, conv_in, conv_out, args.taps, at.all, at.key + i, keeps_keys);
    }
    for (uint i = tid; i < PART && first + i < args.v_dim; i += threads) {
        values[i] = convolved(raw, conv_weight, conv_in, conv_out, args.taps, at.all, at.value + i, true);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    float query[MOST_ELEMENTS];
    float key[MOST_ELEMENTS];
    unit(queries, args.k_dim, precise::rsqrt(static_cast<float>(args.k_dim)), lane, query);
    unit(keys, args.k_dim, 1.0f, lane, key);
    const uint gate = args.row * args.v_heads + head;
    const float kept = decay_of(a[gate], a_log[head], dt_bias[head]);
    const float strength = sigmoid(b[gate]);
    float sum = 0.0f;
    for (uint r = simdgroup * ROWS; r < simdgroup * ROWS + ROWS && first + r < args.v_dim; r++) {
        const uint row = head * args.v_dim + first + r;
        const float y = advance(
            state_in + row * args.k_dim, state_out + row * args.k_dim, key, query, args.k_dim, values[r], kept, strength, lane);
        sum += y * y;
        if (lane == 0) {
            const uint i = args.row * args.v_heads * args.v_dim + row;
            out[i] = y * weight[first + r] * silu(z[i]);
        }
    }
    if (lane == 0) {
        sums[simdgroup] = sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const float total = simd_sum(lane < simdgroups ? sums[lane] : 0.0f);
    if (tid == 0) {
        squares[(args.row * args.v_heads + head) * groups.y + group.y] = total;
    }
}
