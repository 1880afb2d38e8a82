#include <metal_stdlib>
using namespace metal;
inline float first(device const float* p) { return p[0]; }
kernel void k(constant float* c [[buffer(0)]], device float* x [[buffer(1)]], uint i [[thread_position_in_grid]]) { x[i] = first(c); }
