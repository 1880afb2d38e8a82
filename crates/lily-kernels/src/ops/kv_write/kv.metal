// The cache, for kernels that use it; after the prelude. A block holds, per layer, K then V, each [heads, 256, head_dim].

constant uint KV_TYPE [[function_constant(0)]];  // F32 or BF16

constant constexpr uint KV_BLOCK = 256;

struct KvLayer {
    uint offset;  // bytes, within a block
    uint heads;
    uint head_dim;
    uint block_bytes;
};

inline uint kv_bytes() {
    return KV_TYPE == F32 ? 4 : 2;
}

// First byte of a head's row at a position; which: 0 K, 1 V.
inline ulong kv_row(constant KvLayer& layer, StepRow row, device const uint* tables, uint which, uint head, uint position) {
    const ulong block = tables[row.table + position / KV_BLOCK];
    const uint at = (which * layer.heads + head) * KV_BLOCK + position % KV_BLOCK;
    return block * layer.block_bytes + layer.offset + at * layer.head_dim * kv_bytes();
}

inline void store_kv(device uchar* row, uint i, float value) {
    if (KV_TYPE == F32) {
        reinterpret_cast<device float*>(row)[i] = value;
    } else {
        reinterpret_cast<device bfloat*>(row)[i] = static_cast<bfloat>(value);
    }
}

inline float load_kv(device const uchar* row, uint i) {
    if (KV_TYPE == F32) {
        return reinterpret_cast<device const float*>(row)[i];
    }
    return static_cast<float>(reinterpret_cast<device const bfloat*>(row)[i]);
}
