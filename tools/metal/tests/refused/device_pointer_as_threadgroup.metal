#include <metal_stdlib>
using namespace metal;
inline float first(threadgroup const float* p) { return p[0]; }
kernel void k(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] = first(x); }
