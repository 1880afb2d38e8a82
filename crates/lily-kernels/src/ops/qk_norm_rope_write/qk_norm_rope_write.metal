// RMS norm and rotation of a row's query and key heads; keys and values go to the cache. One simdgroup a head: query heads
// first, then key heads.

struct QkNormRopeWriteArguments {
    uint q_cols;
    uint q_stride;
    uint q_heads;
    uint k_cols;
    uint k_stride;
    uint v_cols;
    uint half_dim;
    float q_eps;
    float k_eps;
};

kernel void qk_norm_rope_write(
    device const float* q [[buffer(0)]],
    device const float* k [[buffer(1)]],
    device const float* v [[buffer(2)]],
    device const float* q_weight [[buffer(3)]],
    device const float* k_weight [[buffer(4)]],
    device const float* inv_freq [[buffer(5)]],
    device const StepRow* rows [[buffer(6)]],
    device const uint* tables [[buffer(7)]],
    device float* out [[buffer(8)]],
    device uchar* cache [[buffer(9)]],
    constant KvLayer& layer [[buffer(10)]],
    constant QkNormRopeWriteArguments& args [[buffer(11)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]])
{
    const uint dim = layer.head_dim;
    const uint row = group.y;
    const bool is_query = group.x < args.q_heads;
    const uint head = is_query ? group.x : group.x - args.q_heads;
    device const float* from = is_query ? q + row * args.q_cols + head * args.q_stride : k + row * args.k_cols + head * args.k_stride;
    device const float* weight = is_query ? q_weight : k_weight;
    float squares = 0.0f;
    for (uint i = lane; i < dim; i += 32) {
        squares += from[i] * from[i];
    }
    const float scale = precise::rsqrt(simd_sum(squares) / static_cast<float>(dim) + (is_query ? args.q_eps : args.k_eps));
    const uint position = rows[row].position;
    const ulong key_at = kv_row(layer, rows[row], tables, 0, is_query ? 0 : head, position);
    const ulong value_at = kv_row(layer, rows[row], tables, 1, is_query ? 0 : head, position);
    for (uint i = lane; i < dim; i += 32) {
        float value = from[i] * scale * weight[i];
        if (i < 2 * args.half_dim) {
            const uint pair = i < args.half_dim ? i : i - args.half_dim;
            const uint other = i < args.half_dim ? i + args.half_dim : i - args.half_dim;
            const float turned = from[other] * scale * weight[other];
            const float angle = static_cast<float>(position) * inv_freq[pair];
            const float sine = precise::sin(angle);
            value = value * precise::cos(angle) + (i < args.half_dim ? -turned : turned) * sine;
        }
        if (is_query) {
            out[(row * args.q_heads + head) * dim + i] = value;
        } else {
            store_kv(cache + key_at, i, value);
            store_kv(cache + value_at, i, v[row * args.v_cols + head * dim + i]);
        }
    }
}
