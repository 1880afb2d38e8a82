// What every kernel file begins with: files of operations have no includes of their own.
#include <metal_stdlib>
#include <metal_simdgroup>
using namespace metal;

// Element types as function constants name them.
constant constexpr uint F32 = 0;
constant constexpr uint BF16 = 1;
constant constexpr uint F16 = 2;

// Element i of little-endian values at any byte.
inline float float_at(device const uchar* bytes, uint type, uint i) {
    if (type == F32) {
        device const uchar* at = bytes + 4 * i;
        return as_type<float>(uint(at[0]) | uint(at[1]) << 8 | uint(at[2]) << 16 | uint(at[3]) << 24);
    }
    device const uchar* at = bytes + 2 * i;
    const uint bits = uint(at[0]) | uint(at[1]) << 8;
    if (type == BF16) {
        return as_type<float>(bits << 16);
    }
    return static_cast<float>(as_type<half>(static_cast<ushort>(bits)));
}

inline float sigmoid(float x) {
    return 1.0f / (1.0f + precise::exp(-x));
}

inline float silu(float x) {
    return x / (1.0f + precise::exp(-x));
}

// A row of the step.
struct StepRow {
    uint position;
    uint table;  // its sequence's first entry among the block tables
};

// Element i of a head after rotation.
inline float rotated(device const float* head, device const float* inv_freq, uint half_dim, uint position, uint i) {
    if (i >= 2 * half_dim) {
        return head[i];
    }
    const uint pair = i < half_dim ? i : i - half_dim;
    const float angle = static_cast<float>(position) * inv_freq[pair];
    const float cosine = precise::cos(angle);
    const float sine = precise::sin(angle);
    return i < half_dim ? head[i] * cosine - head[i + half_dim] * sine : head[i] * cosine + head[pair] * sine;
}
