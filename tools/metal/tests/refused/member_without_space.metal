#include <metal_stdlib>
using namespace metal;
struct Row {
    const thread float* x;
};
kernel void k(device const float* x [[buffer(0)]], device float* out [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    const Row row = {x};
    out[i] = row.x[i];
}
