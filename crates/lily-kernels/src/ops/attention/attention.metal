// softmax(q·K / √dim) · V of each row over its sequence's cache. A threadgroup takes PACK query heads of one row that share a
// key/value head, so that each cached row is read once for all of them; its simdgroups take positions in turn, lanes take
// elements lane, lane + 32, …, so that neighbours read neighbours. Each simdgroup keeps a maximum, a sum and an output; at
// the end they are merged.

struct AttentionArguments {
    uint q_heads;
    float scale;
};

constant uint PACK [[function_constant(1)]];  // query heads of a threadgroup, at most MOST_HEADS
constant constexpr uint MOST_HEADS = 4;
constant constexpr uint MOST_ELEMENTS = 8;  // of a lane: head_dim is at most 256
constant constexpr uint SIMDGROUPS = 4;

// The simdgroups' parts of one head, each relative to its own maximum, to the head's output.
inline void merge(
    threadgroup const float* outputs, threadgroup const float* maxima, threadgroup const float* totals, uint dim, uint tid, device float* out) {
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
        out[i] = sum / total;
    }
}

kernel void attention_rows(
    device const float* q [[buffer(0)]],
    device const StepRow* rows [[buffer(1)]],
    device const uint* tables [[buffer(2)]],
    device const uchar* cache [[buffer(3)]],
    device float* out [[buffer(4)]],
    constant KvLayer& layer [[buffer(5)]],
    constant AttentionArguments& args [[buffer(6)]],
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
    const StepRow row = rows[group.y];
    device const float* queries = q + (group.y * args.q_heads + first_head) * dim;

    float total[MOST_HEADS] = {};
    float sums[MOST_HEADS][MOST_ELEMENTS] = {};
    float most[MOST_HEADS];
    for (uint h = 0; h < PACK; h++) {
        most[h] = -numeric_limits<float>::infinity();
    }
    for (uint position = simdgroup; position <= row.position; position += SIMDGROUPS) {
        device const uchar* keys = cache + kv_row(layer, row, tables, 0, kv_head, position);
        device const uchar* values = cache + kv_row(layer, row, tables, 1, kv_head, position);
        float dots[MOST_HEADS] = {};
        for (uint i = lane; i < dim; i += 32) {
            const float key = load_kv(keys, i);
            for (uint h = 0; h < PACK; h++) {
                dots[h] += queries[h * dim + i] * key;
            }
        }
        float weights[MOST_HEADS];
        for (uint h = 0; h < PACK; h++) {
            const float score = simd_sum(dots[h]) * args.scale;
            const float larger = max(most[h], score);
            const float before = precise::exp(most[h] - larger);
            weights[h] = precise::exp(score - larger);
            most[h] = larger;
            total[h] = total[h] * before + weights[h];
            for (uint e = 0; e < MOST_ELEMENTS; e++) {
                sums[h][e] *= before;
            }
        }
        for (uint i = lane, e = 0; i < dim; i += 32, e++) {
            const float value = load_kv(values, i);
            for (uint h = 0; h < PACK; h++) {
                sums[h][e] += weights[h] * value;
            }
        }
    }
    for (uint h = 0; h < PACK; h++) {
        for (uint i = lane, e = 0; i < dim; i += 32, e++) {
            outputs[simdgroup * 32 * MOST_ELEMENTS + i] = sums[h][e];
        }
        if (lane == 0) {
            maxima[simdgroup] = most[h];
            totals[simdgroup] = total[h];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        merge(outputs, maxima, totals, dim, simdgroup * 32 + lane, out + (group.y * args.q_heads + first_head + h) * dim);
        // The next head writes what this one reads.
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
}
