#include <metal_stdlib>
using namespace metal;
kernel void k(device const float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { device float* p = x; p[i] = 1.0f; }
