// Each row's keys and values into the cache, at its position; one thread an element of K and of V.

kernel void kv_write(
    device const float* k [[buffer(0)]],
    device const float* v [[buffer(1)]],
    device const StepRow* rows [[buffer(2)]],
    device const uint* tables [[buffer(3)]],
    device uchar* cache [[buffer(4)]],
    constant KvLayer& layer [[buffer(5)]],
    uint3 at [[thread_position_in_grid]])
{
    if (at.x >= layer.heads * layer.head_dim) {
        return;
    }
    const uint head = at.x / layer.head_dim;
    const uint i = at.y * layer.heads * layer.head_dim + at.x;
    store_kv(cache + kv_row(layer, rows[at.y], tables, 0, head, rows[at.y].position), at.x % layer.head_dim, k[i]);
    store_kv(cache + kv_row(layer, rows[at.y], tables, 1, head, rows[at.y].position), at.x % layer.head_dim, v[i]);
}
