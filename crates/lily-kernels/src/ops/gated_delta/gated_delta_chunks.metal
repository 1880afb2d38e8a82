// The gated delta rule for CHUNK tokens at once, as matrices: with S the state before the chunk, D_ts = Π decay[s + 1 … t],
// d_t = Π decay[0 … t] and A_ts = beta_t · (k_t·k_s) · D_ts for s < t, the deltas solve (I + A) Δ = beta · (v − d · S·k);
// y_t = d_t · S·q_t + Σ_{s ≤ t} (q_t·k_s) · D_ts · Δ_s, and the state becomes d_last · S + Σ_s D_last,s · Δ_s k_sᵀ. Products of
// decays, no logarithms. A threadgroup takes PART rows of a head's state, a simdgroup eight of them, in matrices of 8 × 8.
// What is not a number spoils its whole chunk, also tokens before it.

struct ChunkArguments {
    uint k_heads;
    uint v_heads;
    uint k_dim;
    uint v_dim;
    uint v_cols;
    uint v_start;
    uint first_row;
    uint rows;
};

constant constexpr uint CHUNK = 16;
constant constexpr uint PART = 32;
constant constexpr uint THREADS = 128;
constant constexpr uint PAD = 4;  // so that a column does not lie in one bank
constant constexpr uint VALUES = 4;  // of a lane: one token's, half of the simdgroup's rows
constant constexpr uint TABLE = CHUNK * CHUNK;
constant constexpr uint PIECE = 8 * CHUNK;  // of a simdgroup: its rows by tokens

// What is left after token `last` of what there was before token `first`.
inline float kept(threadgroup const float* decays, uint first, uint last) {
    float all = 1.0f;
    for (uint t = first; t <= last; t++) {
        all *= decays[t];
    }
    return all;
}

// A chunk of one head's keys or queries; zeros past the last token.
template <uint DIM>
inline void load_chunk(device const float* from, uint stride, uint rows, uint tid, threadgroup float* to) {
    for (uint i = tid; i < CHUNK * DIM; i += THREADS) {
        to[i / DIM * (DIM + PAD) + i % DIM] = i / DIM < rows ? from[i / DIM * stride + i % DIM] : 0.0f;
    }
}

// One quarter of the table of a_t · b_s.
template <uint DIM>
inline void multiply_rows(threadgroup const float* a, threadgroup const float* b, uint quarter, threadgroup float* table) {
    simdgroup_float8x8 sum = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    for (uint k = 0; k < DIM; k += 8) {
        simdgroup_float8x8 left;
        simdgroup_float8x8 right;
        simdgroup_load(left, a + quarter / 2 * 8 * (DIM + PAD) + k, DIM + PAD);
        simdgroup_load(right, b + quarter % 2 * 8 * (DIM + PAD) + k, DIM + PAD, ulong2(0, 0), true);
        simdgroup_multiply_accumulate(sum, left, right, sum);
    }
    simdgroup_store(sum, table + quarter / 2 * 8 * CHUNK + quarter % 2 * 8, CHUNK);
}

// State · key of each token, or · query.
template <uint DIM>
inline void ask(thread simdgroup_float8x8 (&state)[DIM / 8], threadgroup const float* rows, threadgroup float* piece) {
    for (uint t = 0; t < CHUNK; t += 8) {
        simdgroup_float8x8 sum = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        for (uint i = 0; i < DIM / 8; i++) {
            simdgroup_float8x8 columns;
            simdgroup_load(columns, rows + t * (DIM + PAD) + i * 8, DIM + PAD, ulong2(0, 0), true);
            simdgroup_multiply_accumulate(sum, state[i], columns, sum);
        }
        simdgroup_store(sum, piece + t, CHUNK);
    }
}

// Tables with their decays: what a delta takes from later ones, what it adds to later outputs; and the state's decay.
inline void weigh(
    threadgroup const float* decays, threadgroup const float* strengths, uint tid, threadgroup float* pulls, threadgroup float* shares, threadgroup float* diagonal) {
    for (uint i = tid; i < TABLE; i += THREADS) {
        const uint t = i / CHUNK;
        const uint s = i % CHUNK;
        const float between = kept(decays, s + 1, t);
        pulls[i] = s < t ? strengths[t] * pulls[i] * between : 0.0f;
        shares[i] = s <= t ? shares[i] * between : 0.0f;
    }
    if (tid < 64) {
        diagonal[tid] = tid % 9 == 0 ? kept(decays, 0, CHUNK - 1) : 0.0f;
    }
}

// Where the first of a lane's numbers lies in a piece.
inline uint place_of(uint lane) {
    return lane / CHUNK * VALUES * CHUNK + lane % CHUNK;
}

// Forward substitution: each token's deltas are final when all before it have been taken from them.
inline void solve(threadgroup const float* pulls, uint lane, thread float* deltas) {
    for (uint s = 0; s + 1 < CHUNK; s++) {
        const uint token = lane % CHUNK;
        const float pull = s < token ? pulls[token * CHUNK + s] : 0.0f;
        for (uint r = 0; r < VALUES; r++) {
            deltas[r] -= pull * simd_shuffle(deltas[r], static_cast<ushort>(lane / CHUNK * CHUNK + s));
        }
    }
}

// The lane's deltas: they take the place of state · keys, and as they are at the chunk's end that behind state · queries.
// Outputs are what the state before the chunk gives. A token past the last has no strength.
inline void change(
    threadgroup const float* gates, device const float* values, threadgroup const float* pulls, uint lane, threadgroup float* found, threadgroup float* asked, thread float* outputs) {
    const uint token = lane % CHUNK;
    const float before = kept(gates, 0, token);
    const float after = kept(gates, token + 1, CHUNK - 1);
    threadgroup float* numbers = found + place_of(lane);
    threadgroup float* more = asked + place_of(lane);
    float deltas[VALUES];
    for (uint r = 0; r < VALUES; r++) {
        deltas[r] = gates[CHUNK + token] * (values[r] - before * numbers[r * CHUNK]);
        outputs[r] = before * more[r * CHUNK];
    }
    solve(pulls, lane, deltas);
    for (uint r = 0; r < VALUES; r++) {
        numbers[r * CHUNK] = deltas[r];
        more[PIECE + r * CHUNK] = deltas[r] * after;
    }
}

// piece = deltas · sharesᵀ.
inline void share(threadgroup const float* deltas, threadgroup const float* shares, threadgroup float* piece) {
    for (uint t = 0; t < CHUNK; t += 8) {
        simdgroup_float8x8 sum = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        for (uint s = 0; s < CHUNK; s += 8) {
            simdgroup_float8x8 left;
            simdgroup_float8x8 right;
            simdgroup_load(left, deltas + s, CHUNK);
            simdgroup_load(right, shares + t * CHUNK + s, CHUNK, ulong2(0, 0), true);
            simdgroup_multiply_accumulate(sum, left, right, sum);
        }
        simdgroup_store(sum, piece + t, CHUNK);
    }
}

// state = diagonal · state + deltas · keys.
template <uint DIM>
inline void move_on(
    threadgroup const float* diagonal, threadgroup const float* deltas, threadgroup const float* keys, thread simdgroup_float8x8 (&state)[DIM / 8]) {
    simdgroup_float8x8 factors;
    simdgroup_float8x8 left[2];
    simdgroup_load(factors, diagonal, 8);
    simdgroup_load(left[0], deltas, CHUNK);
    simdgroup_load(left[1], deltas + 8, CHUNK);
    for (uint i = 0; i < DIM / 8; i++) {
        simdgroup_float8x8 sum = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        simdgroup_multiply_accumulate(sum, factors, state[i], sum);
        for (uint t = 0; t < 2; t++) {
            simdgroup_float8x8 right;
            simdgroup_load(right, keys + t * 8 * (DIM + PAD) + i * 8, DIM + PAD);
            simdgroup_multiply_accumulate(sum, left[t], right, sum);
        }
        state[i] = sum;
    }
}

template <uint DIM>
kernel void gated_delta_chunks(
    device const float* qk [[buffer(0)]],
    device const float* v [[buffer(1)]],
    device const float* decay [[buffer(2)]],
    device const float* beta [[buffer(3)]],
    device const float* state_in [[buffer(4)]],
    device float* state_out [[buffer(5)]],
    device float* out [[buffer(6)]],
    constant ChunkArguments& args [[buffer(7)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]])
{
    threadgroup float queries[CHUNK * (DIM + PAD)];
    threadgroup float keys[CHUNK * (DIM + PAD)];
    threadgroup float gates[2 * CHUNK];  // decays, then strengths
    threadgroup float pulls[TABLE];
    threadgroup float shares[TABLE];
    threadgroup float diagonal[64];
    // Of each simdgroup: state · keys, then deltas; state · queries, then what deltas add; deltas at the chunk's end.
    threadgroup float pieces[PART / 8 * 3 * PIECE];
    threadgroup float* found = pieces + simdgroup * 3 * PIECE;
    threadgroup float* asked = found + PIECE;
    const uint k_head = group.x * args.k_heads / args.v_heads;
    const uint first = group.x * args.v_dim + group.y * PART + simdgroup * 8;
    simdgroup_float8x8 state[DIM / 8];
    for (uint i = 0; i < DIM / 8; i++) {
        simdgroup_load(state[i], state_in + first * DIM + i * 8, DIM);
    }
    for (uint done = 0; done < args.rows; done += CHUNK) {
        const uint rows = min(args.rows - done, CHUNK);
        const uint row = args.first_row + done;
        device const float* head = qk + (row * 2 * args.k_heads + k_head) * DIM;
        load_chunk<DIM>(head, 2 * args.k_heads * DIM, rows, tid, queries);
        load_chunk<DIM>(head + args.k_heads * DIM, 2 * args.k_heads * DIM, rows, tid, keys);
        if (tid < CHUNK) {
            const uint at = (row + tid) * args.v_heads + group.x;
            gates[tid] = tid < rows ? decay[at] : 1.0f;
            gates[CHUNK + tid] = tid < rows ? beta[at] : 0.0f;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        multiply_rows<DIM>(keys, keys, simdgroup, pulls);
        multiply_rows<DIM>(queries, keys, simdgroup, shares);
        ask<DIM>(state, keys, found);
        ask<DIM>(state, queries, asked);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        weigh(gates, gates + CHUNK, tid, pulls, shares, diagonal);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const uint token = lane % CHUNK;
        const uint at = first + lane / CHUNK * VALUES;
        device const float* values = v + (row + min(token, rows - 1)) * args.v_cols + args.v_start + at;
        float outputs[VALUES];
        change(gates, values, pulls, lane, found, asked, outputs);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        share(found, shares, asked);
        move_on<DIM>(diagonal, asked + PIECE, keys, state);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        for (uint r = 0; r < VALUES && token < rows; r++) {
            out[(row + token) * args.v_heads * args.v_dim + at + r] = outputs[r] + asked[place_of(lane) + r * CHUNK];
        }
        // The next chunk overwrites what this one reads.
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    for (uint i = 0; i < DIM / 8; i++) {
        simdgroup_store(state[i], state_out + first * DIM + i * 8, DIM);
    }
}

template [[host_name("gated_delta_chunks64")]] kernel decltype(gated_delta_chunks<64>) gated_delta_chunks<64>;
template [[host_name("gated_delta_chunks128")]] kernel decltype(gated_delta_chunks<128>) gated_delta_chunks<128>;
