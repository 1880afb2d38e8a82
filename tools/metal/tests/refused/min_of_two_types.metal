#include <metal_stdlib>
using namespace metal;
kernel void k(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { const half h = static_cast<half>(x[i]); x[i] = min(x[i], i + h); }
