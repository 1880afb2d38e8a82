// As `attention_parts`, for one row whose spans are whole blocks and whose heads have 256 elements: the cache's table is looked
// up once a block, a lane loads its eight elements of a key at once, and four positions share one change of the maximum.

constant constexpr uint DIM = 256;
constant constexpr uint EIGHT = 8;  // elements of a lane
constant constexpr uint STEP = 4;   // positions that a simdgroup takes at a time

// The lane's elements of a cached row.
inline void load_eight(device const uchar* row, uint lane, thread float* to) {
    if (KV_TYPE == F32) {
        device const float4* from = reinterpret_cast<device const float4*>(row) + 2 * lane;
        for (uint i = 0; i < 2; i++) {
            const float4 four = from[i];
            to[4 * i] = four.x;
            to[4 * i + 1] = four.y;
            to[4 * i + 2] = four.z;
            to[4 * i + 3] = four.w;
        }
    } else {
        const uint4 pairs = reinterpret_cast<device const uint4*>(row)[lane];
        const uint words[4] = {pairs.x, pairs.y, pairs.z, pairs.w};
        for (uint i = 0; i < 4; i++) {
            to[2 * i] = as_type<float>(words[i] << 16);
            to[2 * i + 1] = as_type<float>(words[i] & 0xffff0000u);
        }
    }
}

// Scores and values of up to STEP positions; those that are not there score −∞.
inline void take_step(
    thread Partial& p, thread const float* query, thread const float (&keys)[STEP][EIGHT], thread const float (&values)[STEP][EIGHT], uint count) {
    float scores[STEP];
    float larger = p.largest;
    for (uint i = 0; i < STEP; i++) {
        float dot = 0.0f;
        for (uint e = 0; e < EIGHT; e++) {
            dot += query[e] * keys[i][e];
        }
        const float score = simd_sum(dot);
        scores[i] = i < count ? score : -numeric_limits<float>::infinity();
        larger = max(larger, scores[i]);
    }
    const float before = precise::exp(p.largest - larger);
    p.largest = larger;
    p.total *= before;
    for (uint e = 0; e < EIGHT; e++) {
        p.values[e] *= before;
    }
    for (uint i = 0; i < STEP; i++) {
        const float weight = precise::exp(scores[i] - larger);
        p.total += weight;
        for (uint e = 0; e < EIGHT; e++) {
            p.values[e] += weight * values[i][e];
        }
    }
}

kernel void attention_blocks(
    device const float* q [[buffer(0)]],
    device const StepRow* rows [[buffer(1)]],
    device const uint* tables [[buffer(2)]],
    device const uchar* cache [[buffer(3)]],
    device float* parts [[buffer(4)]],
    constant KvLayer& layer [[buffer(5)]],
    constant Cut& cut [[buffer(6)]],
    constant AttentionPartsArguments& args [[buffer(7)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]])
{
    threadgroup float outputs[SIMDGROUPS * 32 * MOST_ELEMENTS];
    threadgroup float maxima[SIMDGROUPS];
    threadgroup float totals[SIMDGROUPS];
    const uint first_head = group.x * PACK;
    const uint kv_head = first_head / (args.q_heads / layer.heads);
    const StepRow row = rows[0];
    const uint span = span_of(cut, row.position + 1);
    const uint end = min((group.y + 1) * span, row.position + 1);
    Partial partials[MOST_HEADS];
    float query[MOST_HEADS][EIGHT];
    for (uint h = 0; h < PACK; h++) {
        begin(partials[h]);
        for (uint e = 0; e < EIGHT; e++) {
            query[h][e] = q[(first_head + h) * DIM + lane * EIGHT + e] * args.scale;
        }
    }
    for (uint block = group.y * span; block < end; block += KV_BLOCK) {
        device const uchar* keys = cache + kv_row(layer, row, tables, 0, kv_head, block);
        device const uchar* values = cache + kv_row(layer, row, tables, 1, kv_head, block);
        const uint here = min(KV_BLOCK, end - block);
        for (uint first = simdgroup * STEP; first < here; first += SIMDGROUPS * STEP) {
            float key[STEP][EIGHT];
            float value[STEP][EIGHT];
            for (uint i = 0; i < STEP; i++) {
                // Positions past the end are the last one again, and do not count.
                const ulong at = ulong(min(first + i, here - 1)) * DIM * kv_bytes();
                load_eight(keys + at, lane, key[i]);
                load_eight(values + at, lane, value[i]);
            }
            for (uint h = 0; h < PACK; h++) {
                take_step(partials[h], query[h], key, value, here - first);
            }
        }
    }
    for (uint h = 0; h < PACK; h++) {
        for (uint e = 0; e < EIGHT; e++) {
            outputs[simdgroup * DIM + lane * EIGHT + e] = partials[h].values[e];
        }
        if (lane == 0) {
            maxima[simdgroup] = partials[h].largest;
            totals[simdgroup] = partials[h].total;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const ulong part = ulong(first_head + h) * cut.capacity + group.y;
        put_together(outputs, maxima, totals, DIM, simdgroup * 32 + lane, parts + part * (DIM + 2));
        // The next head writes what this one reads.
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
}
