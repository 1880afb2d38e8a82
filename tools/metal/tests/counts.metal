// Kernels whose loads, lines and bytes are known.
#include <metal_stdlib>
using namespace metal;

kernel void coalesced(device const uint* x [[buffer(0)]], device uint* out [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    out[i] = x[i];
}

kernel void strided(device const uint* x [[buffer(0)]], device uint* out [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    out[i] = x[32 * i];
}

kernel void vectors(device const uint4* x [[buffer(0)]], device uint4* out [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    out[i] = x[i];
}

kernel void broadcast(device const uint* x [[buffer(0)]], device uint* out [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    out[i] = x[7];
}

// Four rows of 48: each row is two loads, of 32 lanes and of 16, though half of the lanes run ahead.
kernel void uneven(device const uint* x [[buffer(0)]], device uint* out [[buffer(1)]], uint lane [[thread_index_in_simdgroup]]) {
    for (uint row = 0; row < 4; row++) {
        uint sum = 0;
        for (uint i = lane; i < 48; i += 32) {
            sum += x[64 * row + i];
        }
        const uint all = simd_sum(sum);
        if (lane == 0) {
            out[row] = all;
        }
    }
}

kernel void increment(device uint* x [[buffer(0)]], device atomic_uint* out [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    x[i] += 1;
    atomic_fetch_add_explicit(out, 1u, memory_order_relaxed);
}
