// softmax(q·K / √dim) · V of a chunk's rows over its sequence's cache. A threadgroup takes PACK query heads that share a
// key/value head, and eight rows in each simdgroup: simdgroup s has head s % PACK and row group s / PACK. The cache comes 16
// positions at a time through threadgroup memory, once for all of them. Scores, products and sums are f32; each row keeps
// its maximum and total, and its sums are scaled when the maximum grows.

struct AttentionTileArguments {
    uint q_heads;
    uint rows;
    float scale;
};

constant uint PACK [[function_constant(1)]];
constant constexpr uint ROWS = 8;      // of a simdgroup; a chunk has at least so many
constant constexpr uint BLOCK = 16;    // positions of a step
constant constexpr uint MOST_SIMDGROUPS = 8;
constant constexpr uint PAD = 4;       // keeps a column of threadgroup memory out of one bank
constant constexpr uint SCORE_STRIDE = BLOCK + PAD;
constant constexpr uint DIAGONAL = 64;

// Keys (0) or values (1) of positions from … from + 15; zeros from `end` on.
template <uint DIM>
inline void load_block(
    device const uchar* cache, constant KvLayer& layer, StepRow row, device const uint* tables, uint which, uint head, uint from, uint end, uint tid,
    uint threads, threadgroup float* to) {
    for (uint i = tid; i < BLOCK * DIM / 4; i += threads) {
        const uint position = from + i / (DIM / 4);
        const uint column = i % (DIM / 4) * 4;
        threadgroup float* values = to + i / (DIM / 4) * (DIM + PAD) + column;
        if (position < end) {
            device const uchar* cached = cache + kv_row(layer, row, tables, which, head, position);
            for (uint e = 0; e < 4; e++) {
                values[e] = load_kv(cached, column + e);
            }
        } else {
            for (uint e = 0; e < 4; e++) {
                values[e] = 0.0f;
            }
        }
    }
}

// Eight rows of queries times a block of keys.
template <uint DIM>
inline void score(device const float* queries, uint stride, threadgroup const float* keys, threadgroup float* scores) {
    simdgroup_float8x8 sums[2];
    sums[0] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    sums[1] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    for (uint k = 0; k < DIM; k += 8) {
        simdgroup_float8x8 rows;
        simdgroup_load(rows, queries + k, stride);
        for (uint i = 0; i < 2; i++) {
            simdgroup_float8x8 columns;
            simdgroup_load(columns, keys + i * 8 * (DIM + PAD) + k, DIM + PAD, ulong2(0, 0), true);
            simdgroup_multiply_accumulate(sums[i], rows, columns, sums[i]);
        }
    }
    simdgroup_store(sums[0], scores, SCORE_STRIDE);
    simdgroup_store(sums[1], scores + 8, SCORE_STRIDE);
}

// Scores to weights in place: four lanes have a row, four neighbours each. Returns what the row's earlier sums keep.
inline float soften(threadgroup float* scores, uint from, uint position, float scale, uint lane, thread float& most, thread float& total) {
    threadgroup float* mine = scores + lane / 4 * SCORE_STRIDE + lane % 4 * 4;
    const uint last = position + lane / 4;
    float values[4];
    float largest = most;
    for (uint i = 0; i < 4; i++) {
        const bool is_seen = from + lane % 4 * 4 + i <= last;
        values[i] = is_seen ? mine[i] * scale : -numeric_limits<float>::infinity();
        largest = max(largest, values[i]);
    }
    largest = max(largest, simd_shuffle_xor(largest, 1));
    largest = max(largest, simd_shuffle_xor(largest, 2));
    float sum = 0.0f;
    for (uint i = 0; i < 4; i++) {
        // The first block has a position that each row sees, so that the maximum is a number from there on.
        mine[i] = precise::exp(values[i] - largest);
        sum += mine[i];
    }
    sum += simd_shuffle_xor(sum, 1);
    sum += simd_shuffle_xor(sum, 2);
    const float kept = precise::exp(most - largest);
    total = total * kept + sum;
    most = largest;
    return kept;
}

// Rows of sums times a number each, which lane 4 · row has put on the diagonal.
template <uint DIM>
inline void scale_rows(threadgroup const float* diagonal, thread simdgroup_float8x8 (&sums)[DIM / 8]) {
    simdgroup_float8x8 factors;
    simdgroup_load(factors, diagonal, 8);
    const simdgroup_float8x8 zero = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    for (uint i = 0; i < DIM / 8; i++) {
        simdgroup_float8x8 scaled;
        simdgroup_multiply_accumulate(scaled, factors, sums[i], zero);
        sums[i] = scaled;
    }
}

// sums += weights · values of a block.
template <uint DIM>
inline void add_values(threadgroup const float* weights, threadgroup const float* values, thread simdgroup_float8x8 (&sums)[DIM / 8]) {
    for (uint k = 0; k < BLOCK; k += 8) {
        simdgroup_float8x8 rows;
        simdgroup_load(rows, weights + k, SCORE_STRIDE);
        for (uint i = 0; i < DIM / 8; i++) {
            simdgroup_float8x8 columns;
            simdgroup_load(columns, values + k * (DIM + PAD) + i * 8, DIM + PAD);
            simdgroup_multiply_accumulate(sums[i], rows, columns, sums[i]);
        }
    }
}

// Sums to memory through a simdgroup's own quarter-wide piece of threadgroup memory; rows before `skipped` are another's.
template <uint DIM>
inline void write_rows(thread simdgroup_float8x8 (&sums)[DIM / 8], threadgroup float* piece, uint skipped, uint stride, uint lane, device float* out) {
    constexpr uint WIDTH = DIM / 4;
    for (uint part = 0; part < 4; part++) {
        for (uint i = 0; i < WIDTH / 8; i++) {
            simdgroup_store(sums[part * (WIDTH / 8) + i], piece + i * 8, WIDTH);
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = lane; i < ROWS * WIDTH; i += 32) {
            if (i / WIDTH >= skipped) {
                out[i / WIDTH * stride + part * WIDTH + i % WIDTH] = piece[i];
            }
        }
        // The next part overwrites what this one reads.
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
}

template <uint DIM>
kernel void attention_tile(
    device const float* q [[buffer(0)]],
    device const StepRow* rows [[buffer(1)]],
    device const uint* tables [[buffer(2)]],
    device const uchar* cache [[buffer(3)]],
    device float* out [[buffer(4)]],
    constant KvLayer& layer [[buffer(5)]],
    constant AttentionTileArguments& args [[buffer(6)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]])
{
    threadgroup float tile[BLOCK * (DIM + PAD)];
    threadgroup float all_scores[MOST_SIMDGROUPS * ROWS * SCORE_STRIDE];
    threadgroup float diagonals[MOST_SIMDGROUPS * DIAGONAL];
    const uint head = group.x * PACK + simdgroup % PACK;
    const uint kv_head = group.x * PACK / (args.q_heads / layer.heads);
    const uint tile_rows = simdgroups / PACK * ROWS;
    // The last rows are taken together with some before them, which another simdgroup writes; all of them, if none are left.
    const uint wanted = group.y * tile_rows + simdgroup / PACK * ROWS;
    const uint first = min(wanted, args.rows - ROWS);
    const StepRow start = rows[0];
    const uint end = start.position + min((group.y + 1) * tile_rows, args.rows);
    const uint stride = args.q_heads * DIM;
    device const float* queries = q + first * stride + head * DIM;
    threadgroup float* scores = all_scores + simdgroup * ROWS * SCORE_STRIDE;
    threadgroup float* diagonal = diagonals + simdgroup * DIAGONAL;
    diagonal[lane] = 0.0f;
    diagonal[lane + 32] = 0.0f;

    simdgroup_float8x8 sums[DIM / 8];
    for (uint i = 0; i < DIM / 8; i++) {
        sums[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
    float most = -numeric_limits<float>::infinity();
    float total = 0.0f;
    const uint tid = simdgroup * 32 + lane;
    for (uint from = 0; from < end; from += BLOCK) {
        load_block<DIM>(cache, layer, start, tables, 0, kv_head, from, end, tid, simdgroups * 32, tile);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        score<DIM>(queries, stride, tile, scores);
        // Values take the place of the keys.
        threadgroup_barrier(mem_flags::mem_threadgroup);
        load_block<DIM>(cache, layer, start, tables, 1, kv_head, from, end, tid, simdgroups * 32, tile);
        const float kept = soften(scores, from, start.position + first, args.scale, lane, most, total);
        if (lane % 4 == 0) {
            diagonal[lane / 4 * 9] = kept;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (simd_any(kept != 1.0f)) {
            scale_rows<DIM>(diagonal, sums);
        }
        add_values<DIM>(scores, tile, sums);
        // The next keys take the place of the values.
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (lane % 4 == 0) {
        diagonal[lane / 4 * 9] = 1.0f / total;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    scale_rows<DIM>(diagonal, sums);
    write_rows<DIM>(sums, tile + simdgroup * ROWS * DIM / 4, wanted - first, stride, lane, out + first * stride + head * DIM);
}

template [[host_name("attention_tile64")]] kernel decltype(attention_tile<64>) attention_tile<64>;
template [[host_name("attention_tile128")]] kernel decltype(attention_tile<128>) attention_tile<128>;
template [[host_name("attention_tile256")]] kernel decltype(attention_tile<256>) attention_tile<256>;
