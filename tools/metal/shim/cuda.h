// What a Metal source may name on a device, for nvcc: a threadgroup is a block, a simdgroup a warp, a thread a thread.
// Nothing is looked at here; what a kernel may leave to chance, the executor (kernel.h) has checked.
#pragma once
#define MSL_INLINE __device__ __forceinline__

namespace metal {

// From and to float implicitly, as Metal's; arithmetic of two halves is a half.
struct half {
    unsigned short bits;
    half() = default;
    MSL_INLINE half(float f) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(f)); }
    MSL_INLINE half(int i) : half(static_cast<float>(i)) {}
    MSL_INLINE half(unsigned i) : half(static_cast<float>(i)) {}
    MSL_INLINE operator float() const {
        float f;
        asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(bits));
        return f;
    }
};

}  // namespace metal

#include "types.h"

// The translation puts `msl_` before these words of the language.
#define msl_kernel static __device__
#define msl_device
#define msl_constant const
#define msl_program_constant __constant__ const
#define msl_threadgroup
#define msl_thread
#define msl_inline __device__ inline

namespace metal {

// Templates, so that a half and a float make a float and not a doubt.
#define MSL_HALF(OP)                                                                                     \
    template <class H, class = std::enable_if_t<is_same_v<H, half>>> MSL_INLINE half operator OP(H a, H b) { \
        return half(static_cast<float>(a) OP static_cast<float>(b));                                     \
    }                                                                                                    \
    template <class N> MSL_INLINE half& operator OP##=(half& a, N b) { return a = half(static_cast<float>(a) OP static_cast<float>(b)); }
MSL_HALF(+) MSL_HALF(-) MSL_HALF(*) MSL_HALF(/)
#undef MSL_HALF
MSL_INLINE half operator-(half a) { return half(-static_cast<float>(a)); }

// ---- where threads meet ----
MSL_INLINE uint thread_index() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
MSL_INLINE uint threadgroup_threads() { return blockDim.x * blockDim.y * blockDim.z; }
MSL_INLINE uint lane_index() { return thread_index() % 32; }
// Lanes of this simdgroup, as bits: the last one of a threadgroup may have fewer.
MSL_INLINE uint simd_lanes() {
    const uint left = threadgroup_threads() - thread_index() / 32 * 32;
    return left >= 32 ? 0xffffffffu : (1u << left) - 1;
}
MSL_INLINE void threadgroup_barrier(mem_flags) { __syncthreads(); }
MSL_INLINE void simdgroup_barrier(mem_flags) { __syncwarp(simd_lanes()); }

// Any value of a lane, in words of 32 bits.
template <class T> MSL_INLINE T from_lane(T x, uint lane) {
    constexpr uint WORDS = (sizeof(T) + 3) / 4;
    uint words[WORDS] = {};
    memcpy(words, &x, sizeof x);
    for (uint i = 0; i < WORDS; i++) words[i] = __shfl_sync(simd_lanes(), words[i], static_cast<int>(lane));
    memcpy(&x, words, sizeof x);
    return x;
}
// What Metal leaves undefined is poison: NaN in every float, large in every integer.
template <class T> MSL_INLINE T poison() {
    T value;
    memset(&value, 0xff, sizeof value);
    return value;
}
template <class T> MSL_INLINE T simd_shuffle(T x, ushort from) { return from_lane(x, from); }
template <class T> MSL_INLINE T simd_shuffle_xor(T x, ushort mask) { return from_lane(x, lane_index() ^ mask); }
template <class T> MSL_INLINE T simd_shuffle_down(T x, ushort by) {
    const T other = from_lane(x, (lane_index() + by) % 32);
    return lane_index() + by < 32 ? other : poison<T>();
}
template <class T> MSL_INLINE T simd_shuffle_up(T x, ushort by) {
    const T other = from_lane(x, (lane_index() - by) % 32);
    return lane_index() >= by ? other : poison<T>();
}
template <class T> MSL_INLINE T simd_broadcast(T x, ushort from) { return from_lane(x, from); }
template <class T> MSL_INLINE T simd_broadcast_first(T x) { return from_lane(x, 0); }
// As a tree over the lanes that are there: 16, 8, 4, 2, 1. All get what the first lane has.
template <class T, class F> MSL_INLINE T reduce(T x, F f) {
    const uint lanes = simd_lanes();
    for (uint width = 16; width > 0; width /= 2) {
        const uint from = lane_index() + width;
        const bool there = from < 32 && (lanes >> from & 1) != 0;
        const T other = from_lane(x, there ? from : lane_index());
        if (there) x = f(x, other);
    }
    return from_lane(x, 0);
}
template <class T> MSL_INLINE T simd_sum(T x) { return reduce(x, [](T a, T b) { return T(a + b); }); }
template <class T> MSL_INLINE T simd_max(T x) { return reduce(x, [](T a, T b) { return a < b ? b : a; }); }
template <class T> MSL_INLINE T simd_min(T x) { return reduce(x, [](T a, T b) { return b < a ? b : a; }); }
template <class T> MSL_INLINE T simd_or(T x) { return reduce(x, [](T a, T b) { return T(a | b); }); }
template <class T> MSL_INLINE T simd_and(T x) { return reduce(x, [](T a, T b) { return T(a & b); }); }
MSL_INLINE bool simd_any(bool x) { return __any_sync(simd_lanes(), x) != 0; }
MSL_INLINE bool simd_all(bool x) { return __all_sync(simd_lanes(), x) != 0; }
template <class T> MSL_INLINE T simd_prefix_exclusive_sum(T x) {
    T sum = T(0);
    for (uint lane = 0; lane < 32 && (simd_lanes() >> lane & 1) != 0; lane++) {
        const T other = from_lane(x, lane);
        if (lane < lane_index()) sum = T(sum + other);
    }
    return sum;
}
template <class T> MSL_INLINE T simd_prefix_inclusive_sum(T x) { return T(simd_prefix_exclusive_sum(x) + x); }

// ---- atomics: CUDA's are relaxed too ----
template <class T> struct atomic { T value; };
typedef atomic<uint> atomic_uint;
typedef atomic<int> atomic_int;
typedef atomic<float> atomic_float;
template <class T> MSL_INLINE T atomic_load_explicit(const volatile atomic<T>* at, memory_order) { return at->value; }
template <class T> MSL_INLINE void atomic_store_explicit(volatile atomic<T>* at, T value, memory_order) { at->value = value; }
#define MSL_UPDATE(NAME, OF)                                                               \
    template <class T> MSL_INLINE T NAME(volatile atomic<T>* at, T by, memory_order) {     \
        return OF(const_cast<T*>(&at->value), by);                                         \
    }
MSL_UPDATE(atomic_fetch_add_explicit, atomicAdd) MSL_UPDATE(atomic_exchange_explicit, atomicExch)
MSL_UPDATE(atomic_fetch_max_explicit, atomicMax) MSL_UPDATE(atomic_fetch_min_explicit, atomicMin)
MSL_UPDATE(atomic_fetch_or_explicit, atomicOr)
#undef MSL_UPDATE

// ---- simdgroup_matrix: 8×8, two neighbours of a row in each lane, as in kernel.h ----
MSL_INLINE uint matrix_row(uint lane) { return (lane >> 4 & 1) * 4 + (lane >> 1 & 3); }
MSL_INLINE uint matrix_column(uint lane) { return (lane >> 3 & 1) * 4 + (lane & 1) * 2; }
MSL_INLINE uint matrix_lane(uint row, uint column) { return (row >> 2) << 4 | (row & 3) << 1 | (column >> 2) << 3 | (column >> 1 & 1); }
template <class T, int Rows, int Columns> struct simdgroup_matrix {
    static_assert(Rows == 8 && Columns == 8, "matrices are 8×8");
    vec<T, 2> pair;
    MSL_INLINE vec<T, 2>& thread_elements() { return pair; }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;
template <class T, int Rows, int Columns> MSL_INLINE simdgroup_matrix<T, Rows, Columns> make_filled_simdgroup_matrix(T value) {
    return {vec<T, 2>(value)};
}
// Where element i of this lane's pair lies.
MSL_INLINE ulong matrix_at(ulong stride, ulong2 origin, bool transpose, uint i) {
    const uint row = matrix_row(lane_index()), column = matrix_column(lane_index()) + i;
    return (origin[1] + (transpose ? column : row)) * stride + origin[0] + (transpose ? row : column);
}
template <class T> MSL_INLINE void simdgroup_load(simdgroup_matrix<T, 8, 8>& m, const T* from, ulong stride = 8, ulong2 origin = ulong2(0), bool transpose = false) {
    for (uint i = 0; i < 2; i++) m.pair[i] = from[matrix_at(stride, origin, transpose, i)];
}
template <class T> MSL_INLINE void simdgroup_store(const simdgroup_matrix<T, 8, 8>& m, T* to, ulong stride = 8, ulong2 origin = ulong2(0), bool transpose = false) {
    for (uint i = 0; i < 2; i++) to[matrix_at(stride, origin, transpose, i)] = m.pair[i];
}
template <class D, class A, class B, class C>
MSL_INLINE void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a, const simdgroup_matrix<B, 8, 8>& b,
                                              const simdgroup_matrix<C, 8, 8>& c) {
    const float a0 = a.pair[0], a1 = a.pair[1], b0 = b.pair[0], b1 = b.pair[1];
    const uint row = matrix_row(lane_index()), column = matrix_column(lane_index());
    float sums[2] = {static_cast<float>(c.pair[0]), static_cast<float>(c.pair[1])};
    for (uint k = 0; k < 8; k++) {
        const uint at = matrix_lane(row, k), under = matrix_lane(k, column);
        const float even = from_lane(a0, at), odd = from_lane(a1, at);
        const float factor = k & 1 ? odd : even;
        sums[0] = ::fmaf(factor, from_lane(b0, under), sums[0]);
        sums[1] = ::fmaf(factor, from_lane(b1, under), sums[1]);
    }
    for (uint i = 0; i < 2; i++) d.pair[i] = static_cast<D>(sums[i]);
}

// ---- kernels ----
enum class Attribute : int { grid_position, position, group_position, index, lane, simdgroup, simdgroups, threads, groups, grid_threads, width };
struct Parameter { char kind; int index; };  // 'b'uffer, 't'hreadgroup memory, 'a'ttribute
// What a launch gives; `src/nvidia/mod.rs` declares the same.
struct Arguments {
    void* buffers[31];
    uint memories[31];  // where in the dynamic shared memory each threadgroup parameter begins
};
extern __shared__ __align__(16) unsigned char threadgroup_memory[];
MSL_INLINE uint3 attribute(Attribute what) {
    const uint3 at(threadIdx.x, threadIdx.y, threadIdx.z), group(blockIdx.x, blockIdx.y, blockIdx.z);
    const uint3 threads(blockDim.x, blockDim.y, blockDim.z), groups(gridDim.x, gridDim.y, gridDim.z);
    switch (what) {
        case Attribute::grid_position: return group * threads + at;
        case Attribute::position: return at;
        case Attribute::group_position: return group;
        case Attribute::index: return uint3(thread_index());
        case Attribute::lane: return uint3(lane_index());
        case Attribute::simdgroup: return uint3(thread_index() / 32);
        case Attribute::simdgroups: return uint3((threadgroup_threads() + 31) / 32);
        case Attribute::threads: return threads;
        case Attribute::groups: return groups;
        case Attribute::grid_threads: return groups * threads;
        case Attribute::width: return uint3(32);
    }
    return uint3(0);
}
template <class P> struct Narrow { static MSL_INLINE P of(uint3 v) { return static_cast<P>(v[0]); } };
template <class T> struct Narrow<vec<T, 2>> { static MSL_INLINE vec<T, 2> of(uint3 v) { return {static_cast<T>(v[0]), static_cast<T>(v[1])}; } };
template <class T> struct Narrow<vec<T, 3>> { static MSL_INLINE vec<T, 3> of(uint3 v) { return {static_cast<T>(v[0]), static_cast<T>(v[1]), static_cast<T>(v[2])}; } };
template <class P> MSL_INLINE decltype(auto) argument(Parameter p, const Arguments& all) {
    if constexpr (std::is_pointer_v<P>)
        return reinterpret_cast<P>(p.kind == 't' ? threadgroup_memory + all.memories[p.index] : all.buffers[p.index]);
    else if constexpr (std::is_reference_v<P>)
        return *reinterpret_cast<std::remove_reference_t<P>*>(all.buffers[p.index]);
    else
        return Narrow<std::remove_cv_t<P>>::of(attribute(static_cast<Attribute>(p.index)));
}
template <auto F> struct Call;
template <class... P, void (*F)(P...)> struct Call<F> {
    template <std::size_t... I> static MSL_INLINE void with(const Parameter* table, const Arguments& all, std::index_sequence<I...>) {
        F(static_cast<P>(argument<P>(table[I], all))...);
    }
    static MSL_INLINE void with(const Parameter* table, const Arguments& all) { with(table, all, std::index_sequence_for<P...>{}); }
};

}  // namespace metal

#define MSL_THREADGROUP_ARRAY(T, name, dims, slot) __shared__ T name dims
// The host finds it by its name.
#define MSL_FUNCTION_CONSTANT(T, name, index) extern "C" { __constant__ T name; }
#define MSL_KERNEL(name, id, function, ...)                                                                                  \
    extern "C" __global__ void __launch_bounds__(1024) msl_kernel_##id(const __grid_constant__ metal::Arguments arguments) { \
        constexpr metal::Parameter table[] = {__VA_ARGS__};                                                                  \
        metal::Call<function>::with(table, arguments);                                                                       \
    }
