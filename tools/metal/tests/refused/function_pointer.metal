#include <metal_stdlib>
using namespace metal;
inline float one(float x) { return x; }
kernel void k(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { float (*f)(float) = one; x[i] = f(x[i]); }
