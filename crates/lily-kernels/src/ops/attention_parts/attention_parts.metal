// One span of the cache for PACK query heads of a row that share a key/value head: the weighted values, the largest score and
// the sum of weights of each. Simdgroups take positions in turn, each with a maximum, a sum and values of its own; at the end
// they are merged. With COALESCED lanes take elements lane, lane + 32, …, so that neighbours read neighbours; without, each lane
// takes a run of its own.

constant uint COALESCED [[function_constant(2)]];

// Element e of a lane's share of a head.
inline uint element_of(uint lane, uint e, uint dim) {
    return COALESCED != 0 ? lane + 32 * e : lane * ((dim + 31) / 32) + e;
}

inline uint elements_of(uint lane, uint dim) {
    if (COALESCED != 0) {
        return lane < dim ? (dim - lane + 31) / 32 : 0;
    }
    const uint run = (dim + 31) / 32;
    return lane * run < dim ? min(run, dim - lane * run) : 0;
}

inline void take(thread Partial& p, float score, thread const float* value, uint count) {
    const float larger = max(p.largest, score);
    const float before = precise::exp(p.largest - larger);
    const float weight = precise::exp(score - larger);
    p.largest = larger;
    p.total = p.total * before + weight;
    for (uint e = 0; e < count; e++) {
        p.values[e] = p.values[e] * before + weight * value[e];
    }
}

kernel void attention_parts(
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
    const uint dim = layer.head_dim;
    const uint first_head = group.x * PACK;
    const uint kv_head = first_head / (args.q_heads / layer.heads);
    const uint step_row = group.y / args.spans;
    const StepRow row = rows[step_row];
    const uint span = span_of(cut, row.position + 1);
    const uint start = group.y % args.spans * span;
    // Uniform in the threadgroup: a row with fewer spans than the longest one.
    if (start > row.position) {
        return;
    }
    const uint end = min(start + span, row.position + 1);
    device const float* queries = q + (step_row * args.q_heads + first_head) * dim;
    const uint count = elements_of(lane, dim);
    Partial partials[MOST_HEADS];
    float query[MOST_HEADS][MOST_ELEMENTS] = {};
    for (uint h = 0; h < PACK; h++) {
        begin(partials[h]);
        for (uint e = 0; e < count; e++) {
            query[h][e] = queries[h * dim + element_of(lane, e, dim)] * args.scale;
        }
    }
    for (uint position = start + simdgroup; position < end; position += SIMDGROUPS) {
        device const uchar* keys = cache + kv_row(layer, row, tables, 0, kv_head, position);
        device const uchar* values = cache + kv_row(layer, row, tables, 1, kv_head, position);
        float value[MOST_ELEMENTS];
        float dots[MOST_HEADS] = {};
        for (uint e = 0; e < count; e++) {
            const float key = load_kv(keys, element_of(lane, e, dim));
            value[e] = load_kv(values, element_of(lane, e, dim));
            for (uint h = 0; h < PACK; h++) {
                dots[h] += query[h][e] * key;
            }
        }
        for (uint h = 0; h < PACK; h++) {
            take(partials[h], simd_sum(dots[h]), value, count);
        }
    }
    for (uint h = 0; h < PACK; h++) {
        for (uint e = 0; e < count; e++) {
            outputs[simdgroup * 32 * MOST_ELEMENTS + element_of(lane, e, dim)] = partials[h].values[e];
        }
        if (lane == 0) {
            maxima[simdgroup] = partials[h].largest;
            totals[simdgroup] = partials[h].total;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const ulong part = ulong(step_row * args.q_heads + first_head + h) * cut.capacity + group.y % args.spans;
        put_together(outputs, maxima, totals, dim, simdgroup * 32 + lane, parts + part * (dim + 2));
        // The next head writes what this one reads.
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
}
