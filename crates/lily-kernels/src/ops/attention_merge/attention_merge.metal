// out = (Σ_s weight(s) · values(s) / Σ_s weight(s) · sum(s)) ⊙ σ(gate), weight(s) = exp(largest(s) − largest of all). A threadgroup
// takes some elements of one head of one row.

struct AttentionMergeArguments {
    uint heads;
    uint head_dim;
    uint elements;  // of a threadgroup
    uint gate_stride;
    uint gate_start;
};

constant constexpr uint MOST_SPANS = 128;

kernel void attention_merge(
    device const float* parts [[buffer(0)]],
    device const float* gate [[buffer(1)]],
    device const StepRow* rows [[buffer(2)]],
    device float* out [[buffer(3)]],
    constant Cut& cut [[buffer(4)]],
    constant AttentionMergeArguments& args [[buffer(5)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup float weights[MOST_SPANS];
    const uint pieces = (args.head_dim + args.elements - 1) / args.elements;
    const uint head = group.x / pieces;
    const uint part_len = args.head_dim + 2;
    const uint spans = span_count(cut, rows[group.y].position + 1);
    device const float* of_head = parts + ulong(group.y * args.heads + head) * cut.capacity * part_len;
    // Each simdgroup looks at all spans for itself.
    float most = -numeric_limits<float>::infinity();
    for (uint s = lane; s < spans; s += 32) {
        most = max(most, of_head[s * part_len + args.head_dim]);
    }
    const float largest = simd_max(most);
    float sum = 0.0f;
    for (uint s = lane; s < spans; s += 32) {
        sum += precise::exp(of_head[s * part_len + args.head_dim] - largest) * of_head[s * part_len + args.head_dim + 1];
    }
    const float total = simd_sum(sum);
    for (uint s = tid; s < spans; s += threads) {
        weights[s] = precise::exp(of_head[s * part_len + args.head_dim] - largest);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint first = group.x % pieces * args.elements;
    for (uint i = first + tid; i < first + args.elements && i < args.head_dim; i += threads) {
        float value = 0.0f;
        for (uint s = 0; s < spans; s++) {
            value += weights[s] * of_head[s * part_len + i];
        }
        const float open = sigmoid(gate[(group.y * args.heads + head) * args.gate_stride + args.gate_start + i]);
        out[(group.y * args.heads + head) * args.head_dim + i] = value / total * open;
    }
}
