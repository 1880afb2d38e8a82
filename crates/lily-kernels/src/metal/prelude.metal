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
