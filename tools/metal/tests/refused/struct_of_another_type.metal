#include <metal_stdlib>
using namespace metal;
struct Row {
    uint x;
};
struct Column {
    uint x;
};
kernel void k(device const Row* rows [[buffer(0)]], device uint* out [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    const Column column = rows[i];
    out[i] = column.x;
}
