// Each thing that the shims offer, once: the executor and an NVIDIA card must give the same numbers.
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;

constant uint FACTOR [[function_constant(0)]];
constant constexpr float TABLE[4] = {0.5f, -1.25f, 3.0f, 7.0f};

struct Shape {
    uint count;
    float scale;
};

struct Line {
    float at;
    float slope;
    float value(float x) const {
        return at + slope * x;
    }
    inline float root(float x) const thread {
        return (x - at) / slope;
    }
};

// Two simdgroups; result k of thread i is out[64 * k + i].
kernel void lanes(
    device const float* x [[buffer(0)]],
    device float* out [[buffer(1)]],
    constant Shape& shape [[buffer(2)]],
    uint i [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    const float a = x[i];
    const uint b = i * FACTOR + shape.count;
    out[i] = simd_sum(a);
    out[64 + i] = simd_max(a) - simd_min(a);
    out[128 + i] = static_cast<float>(simd_sum(b) + simd_max(b) - simd_min(b));
    out[192 + i] = static_cast<float>(simd_or(b) ^ simd_and(b | 4u));
    out[256 + i] = (simd_any(i == 5) ? 1.0f : 0.0f) + (simd_all(i < 32) ? 2.0f : 0.0f);
    out[320 + i] = simd_shuffle(a, static_cast<ushort>(lane * 7 % 32)) + simd_shuffle_xor(a, 5);
    const float up = simd_shuffle_up(a, 3);
    const float down = simd_shuffle_down(a, 9);
    out[384 + i] = (lane >= 3 ? up : 0.0f) + (lane + 9 < 32 ? down : 0.0f);
    out[448 + i] = simd_broadcast(a, 17) - simd_broadcast_first(a);
    out[512 + i] = static_cast<float>(simd_prefix_exclusive_sum(b) + simd_prefix_inclusive_sum(b));
    const float4 four = simd_shuffle_xor(float4(a, a + 1.0f, a * 2.0f, shape.scale), 1);
    out[576 + i] = four.x + four.y * four.z - four.w;
    out[640 + i] = static_cast<float>(simd_shuffle(static_cast<half>(a), static_cast<ushort>(31 - lane)));
}

// A last simdgroup of fewer threads.
kernel void some_lanes(
    device float* out [[buffer(0)]], uint i [[thread_index_in_threadgroup]], uint2 at [[thread_position_in_grid]])
{
    out[i] = static_cast<float>(simd_sum(at.x)) + (simd_any(i == 33) ? 0.5f : 0.0f);
}

template <class T> inline void product(
    device const float* x, device float* out, threadgroup T* shared, uint i, ushort kind)
{
    shared[i] = static_cast<T>(x[i]);
    shared[i + 32] = static_cast<T>(x[63 - i]);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_matrix<T, 8, 8> left;
    simdgroup_matrix<T, 8, 8> right;
    simdgroup_load(left, shared, 8);
    simdgroup_load(right, shared, 8, ulong2(0, 0), true);
    simdgroup_float8x8 sums = make_filled_simdgroup_matrix<float, 8, 8>(0.25f);
    simdgroup_multiply_accumulate(sums, left, right, sums);
    simdgroup_multiply_accumulate(sums, right, left, sums);
    simdgroup_store(sums, out + 64 * kind, 8, ulong2(0, 0), kind == 1);
    simdgroup_barrier(mem_flags::mem_threadgroup);
}

// One simdgroup.
kernel void matrices(
    device const float* x [[buffer(0)]], device float* out [[buffer(1)]], uint i [[thread_index_in_threadgroup]])
{
    threadgroup float floats[64];
    threadgroup half halves[64];
    threadgroup bfloat bfloats[64];
    product(x, out, floats, i, 0);
    product(x, out, halves, i, 1);
    product(x, out, bfloats, i, 2);
}

kernel void numbers(device const float* x [[buffer(0)]], device float* out [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    const float a = x[i];
    const half h = static_cast<half>(a) * static_cast<half>(1.5f) - static_cast<half>(0.375f);
    const bfloat b = static_cast<bfloat>(a) * static_cast<bfloat>(3.0f);
    half most = max(h, static_cast<half>(0.5f));
    most += static_cast<half>(0.125f);
    out[i] = static_cast<float>(h) + static_cast<float>(-most);
    out[64 + i] = static_cast<float>(b);
    out[128 + i] = precise::exp(a) + precise::log(fabs(a) + 0.5f) + precise::sqrt(fabs(a)) + precise::rsqrt(a * a + 1.0f);
    out[192 + i] = precise::sin(a * 100.0f) + precise::cos(a) + precise::tanh(a) + exp2(a) + precise::pow(fabs(a) + 1.0f, 1.7f);
    out[256 + i] = floor(a) + ceil(a * 3.0f) + rint(a * 7.0f) + fma(a, 2.0f, 1.0f) + clamp(a, -0.5f, 0.5f);
    float4 v = float4(a, 2.0f, 3.0f, 4.0f) * 2.0f + TABLE[i % 4];
    v.xy = float2(v.y, v.x);
    out[320 + i] = dot(v, float4(1.0f, -1.0f, 0.5f, a)) + float2(v.zw).y;
    out[384 + i] = static_cast<float>(popcount(as_type<uint>(a)) + as_type<uchar4>(a).w);
    const Line line = {0.5f, 3.0f};
    out[512 + i] = line.value(a) - line.root(a * a);
    out[448 + i] = (isnan(a / (a - a)) ? 1.0f : 0.0f) + (isinf(1.0f / (a - a)) ? 2.0f : 0.0f);
}

// Two threadgroups.
kernel void counts(
    device const float* x [[buffer(0)]],
    device atomic_uint* totals [[buffer(1)]],
    device float* out [[buffer(2)]],
    threadgroup float* shared [[threadgroup(0)]],
    uint i [[thread_index_in_threadgroup]],
    uint group [[threadgroup_position_in_grid]],
    uint groups [[threadgroups_per_grid]])
{
    threadgroup atomic_uint here[2];
    if (i < 2) {
        atomic_store_explicit(&here[i], i * FACTOR, memory_order_relaxed);
    }
    shared[i] = x[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    atomic_fetch_add_explicit(&here[i % 2], i, memory_order_relaxed);
    atomic_fetch_add_explicit(&totals[0], i + group, memory_order_relaxed);
    atomic_fetch_max_explicit(&totals[1], i * 3u, memory_order_relaxed);
    atomic_fetch_or_explicit(&totals[2], 1u << (i % 20u), memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint both = atomic_load_explicit(&here[0], memory_order_relaxed) + atomic_load_explicit(&here[1], memory_order_relaxed);
    out[group * 64 + i] = shared[63 - i] + static_cast<float>(both * groups);
}
