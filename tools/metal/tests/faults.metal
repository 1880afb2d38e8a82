// Kernels that are wrong on purpose, and two that are right: the check must tell them apart.
#include <metal_stdlib>
using namespace metal;

kernel void race_in_threadgroup_memory(device uint* out [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) {
    threadgroup uint shared[64];
    shared[tid] = tid;
    out[tid] = shared[63 - tid];
}

kernel void barrier_for_other_memory(device uint* out [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) {
    threadgroup uint shared[64];
    shared[tid] = tid;
    threadgroup_barrier(mem_flags::mem_device);
    out[tid] = shared[63 - tid];
}

kernel void race_between_threadgroups(device uint* out [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) {
    out[tid] = tid;
}

kernel void plain_read_of_an_atomic(
    device atomic_uint* count [[buffer(0)]], device uint* out [[buffer(1)]], uint tid [[thread_index_in_threadgroup]]) {
    if (tid < 32) {
        atomic_fetch_add_explicit(count, 1u, memory_order_relaxed);
    } else {
        out[tid] = *(device uint*)count;
    }
}

kernel void write_past_the_end(device uint* out [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) {
    out[tid + 1] = tid;
}

kernel void read_past_the_end(
    device const uint* x [[buffer(0)]], device uint* out [[buffer(1)]], uint tid [[thread_index_in_threadgroup]]) {
    out[tid] = x[tid + 1];
}

kernel void divergent_simd_operation(device uint* out [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
    uint sum = 0;
    if (lane < 16) {
        sum = simd_sum(lane);
    } else {
        sum = simd_max(lane);
    }
    out[lane] = sum;
}

kernel void partial_simd_operation(device uint* out [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
    if (lane < 20) {
        out[lane] = simd_sum(lane);
    }
}

kernel void divergent_barrier(device uint* out [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) {
    threadgroup uint shared[64];
    if (tid < 32) {
        shared[tid] = tid;
        threadgroup_barrier(mem_flags::mem_threadgroup);
    } else {
        shared[tid] = 2 * tid;
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    out[tid] = shared[63 - tid];
}

kernel void barrier_against_simd_operation(device uint* out [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
    if (lane < 16) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
    } else {
        out[lane] = simd_sum(lane);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
}

kernel void barrier_for_no_memory(device uint* out [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) {
    threadgroup uint shared[64];
    shared[tid] = tid;
    threadgroup_barrier(mem_flags::mem_none);
    out[tid] = shared[63 - tid];
}

kernel void simdgroup_barrier_between_simdgroups(device uint* out [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) {
    threadgroup uint shared[64];
    shared[tid] = tid;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    out[tid] = shared[63 - tid];
}

kernel void misaligned_vector(
    device const uint* x [[buffer(0)]], device uint* out [[buffer(1)]], uint tid [[thread_index_in_threadgroup]]) {
    const uint4 four = *reinterpret_cast<device const uint4*>(x + tid % 4 * 2);
    out[tid] = four.x + four.y + four.z + four.w;
}

// Whose load a compiler may cut into its lanes.
kernel void misaligned_factor(
    device const uint* x [[buffer(0)]], device uint* out [[buffer(1)]], uint tid [[thread_index_in_threadgroup]]) {
    const uint4 three = uint4(3) * *reinterpret_cast<device const uint4*>(x + tid % 4 * 2);
    out[tid] = three.x + three.w;
}

kernel void barrier_after_exit(device uint* out [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) {
    if (tid == 5) {
        return;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[tid] = tid;
}

kernel void uninitialised_threadgroup_memory(device uint* out [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) {
    threadgroup uint shared[64];
    if (tid != 3) {
        shared[tid] = tid;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[tid] = shared[tid];
}

kernel void too_much_threadgroup_memory(device uint* out [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) {
    threadgroup uint shared[8193];
    shared[tid] = tid;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[tid] = shared[tid];
}

kernel void ordered_by_threadgroup_barrier(device uint* out [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) {
    threadgroup uint shared[2 * 32];
    shared[tid] = tid;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[tid] = shared[63 - tid];
}

kernel void ordered_by_simdgroup_barrier(device uint* out [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) {
    threadgroup uint shared[64];
    shared[tid] = tid;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    out[tid] = shared[tid ^ 1];
}
