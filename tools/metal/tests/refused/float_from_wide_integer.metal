#include <metal_stdlib>
using namespace metal;
kernel void k(device uint* n [[buffer(0)]], device float* x [[buffer(1)]], uint i [[thread_position_in_grid]]) { const float f = n[i] * 3u; n[i] = f; x[i] = f; }
