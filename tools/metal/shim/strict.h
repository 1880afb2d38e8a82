// What a Metal source may name, for the strict front end: clang's C++ for OpenCL 2021 has Metal's address spaces. Without the
// generic one a pointer keeps its space, as in Metal. Nothing runs: there are declarations only, one for each type, so that
// nothing converts in silence. What a kernel needs and is not here is added here, as the specification has it.
#pragma once
#pragma OPENCL EXTENSION cl_khr_fp16 : enable

// The translation puts `msl_` before these words of the language.
#define msl_kernel static
#define msl_device __global
#define msl_constant __constant
#define msl_program_constant __constant
#define msl_threadgroup __local
#define msl_thread __private
#define msl_inline inline

typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;

namespace metal {

typedef __bf16 bfloat;

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }
void threadgroup_barrier(mem_flags flags);
void simdgroup_barrier(mem_flags flags);

#define MSL_NUMBERS(DECLARE) \
    DECLARE(char) DECLARE(uchar) DECLARE(short) DECLARE(ushort) DECLARE(int) DECLARE(uint) DECLARE(long) DECLARE(ulong) DECLARE(half) DECLARE(float)
#define MSL_OF_NUMBERS(T)                                                                                             \
    T min(T a, T b);                                                                                                  \
    T max(T a, T b);                                                                                                  \
    T clamp(T x, T low, T high);                                                                                      \
    T simd_sum(T x);                                                                                                  \
    T simd_max(T x);                                                                                                  \
    T simd_min(T x);                                                                                                  \
    T simd_prefix_inclusive_sum(T x);                                                                                 \
    T simd_prefix_exclusive_sum(T x);                                                                                 \
    T simd_shuffle(T x, ushort from);                                                                                 \
    T simd_shuffle_xor(T x, ushort mask);                                                                             \
    T simd_shuffle_down(T x, ushort by);                                                                              \
    T simd_shuffle_up(T x, ushort by);                                                                                \
    T simd_broadcast(T x, ushort from);                                                                               \
    T simd_broadcast_first(T x);
MSL_NUMBERS(MSL_OF_NUMBERS)
bool simd_any(bool x);
bool simd_all(bool x);

#define MSL_OF_FLOATS(T) T exp(T x); T exp2(T x); T log(T x); T sqrt(T x); T rsqrt(T x); T sin(T x); T cos(T x); T tanh(T x); \
    T floor(T x); T ceil(T x); T rint(T x); T fabs(T x); T fma(T a, T b, T c); T pow(T a, T b); bool isnan(T x); bool isinf(T x);
MSL_OF_FLOATS(float) MSL_OF_FLOATS(half)
namespace precise {
float exp(float x);
float log(float x);
float sqrt(float x);
float rsqrt(float x);
float sin(float x);
float cos(float x);
float pow(float a, float b);
float tanh(float x);
}

template <class T> struct numeric_limits;
template <> struct numeric_limits<float> {
    static constexpr float infinity() { return __builtin_inff(); }
    static constexpr float max() { return 3.402823466e+38f; }
};

#undef as_type
template <class To, class From> To as_type(From) {
    static_assert(sizeof(To) == sizeof(From), "as_type takes types of equal size");
    return To();
}

template <class T, int Rows, int Columns> struct simdgroup_matrix {
    static_assert(Rows == 8 && Columns == 8, "matrices are 8 by 8");
    T pair[2];
    __private T (&thread_elements())[2] { return pair; }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;
template <class T, int Rows, int Columns> simdgroup_matrix<T, Rows, Columns> make_filled_simdgroup_matrix(T) {
    return simdgroup_matrix<T, Rows, Columns>();
}
#define MSL_MATRICES(SPACE)                                                                                                    \
    template <class T> void simdgroup_load(                                                                                    \
        __private simdgroup_matrix<T, 8, 8>&, const SPACE T*, ulong stride = 8, ulong2 origin = (ulong2)(0, 0), bool transpose = false) {} \
    template <class T> void simdgroup_store(                                                                                   \
        const __private simdgroup_matrix<T, 8, 8>&, SPACE T*, ulong stride = 8, ulong2 origin = (ulong2)(0, 0), bool transpose = false) {}
MSL_MATRICES(__global) MSL_MATRICES(__local)
template <class D, class A, class B, class C>
void simdgroup_multiply_accumulate(__private simdgroup_matrix<D, 8, 8>&, const __private simdgroup_matrix<A, 8, 8>&,
                                   const __private simdgroup_matrix<B, 8, 8>&, const __private simdgroup_matrix<C, 8, 8>&) {}

enum memory_order { memory_order_relaxed };
template <class T> struct atomic { T value; };
#define MSL_ATOMICS(SPACE)                                                                                      \
    template <class T> T atomic_load_explicit(const volatile SPACE atomic<T>*, memory_order) { return T(); }    \
    template <class T> void atomic_store_explicit(volatile SPACE atomic<T>*, T, memory_order) {}                \
    template <class T> T atomic_fetch_add_explicit(volatile SPACE atomic<T>*, T by, memory_order) { return by; }
MSL_ATOMICS(__global) MSL_ATOMICS(__local)

}  // namespace metal

using metal::bfloat;
// OpenCL has these names too.
#define atomic_uint metal::atomic<uint>
#define atomic_int metal::atomic<int>
#define memory_order_relaxed metal::memory_order_relaxed

// Metal makes a vector as a call does.
#define MSL_VECTORS(T)                                                                  \
    inline T##2 msl_##T##2(T all) { return (T##2)(all); }                               \
    inline T##2 msl_##T##2(T a, T b) { return (T##2)(a, b); }                           \
    inline T##3 msl_##T##3(T all) { return (T##3)(all); }                               \
    inline T##3 msl_##T##3(T a, T b, T c) { return (T##3)(a, b, c); }                   \
    inline T##4 msl_##T##4(T all) { return (T##4)(all); }                               \
    inline T##4 msl_##T##4(T a, T b, T c, T d) { return (T##4)(a, b, c, d); }           \
    inline T##4 msl_##T##4(T##2 a, T##2 b) { return (T##4)(a, b); }
MSL_VECTORS(float) MSL_VECTORS(half) MSL_VECTORS(uint) MSL_VECTORS(int) MSL_VECTORS(ushort) MSL_VECTORS(ulong)
#define float2(...) msl_float2(__VA_ARGS__)
#define float3(...) msl_float3(__VA_ARGS__)
#define float4(...) msl_float4(__VA_ARGS__)
#define half2(...) msl_half2(__VA_ARGS__)
#define half4(...) msl_half4(__VA_ARGS__)
#define uint2(...) msl_uint2(__VA_ARGS__)
#define uint3(...) msl_uint3(__VA_ARGS__)
#define uint4(...) msl_uint4(__VA_ARGS__)
#define int2(...) msl_int2(__VA_ARGS__)
#define int4(...) msl_int4(__VA_ARGS__)
#define ushort2(...) msl_ushort2(__VA_ARGS__)
#define ulong2(...) msl_ulong2(__VA_ARGS__)

#define MSL_THREADGROUP_ARRAY(T, name, dims, slot) __local T(&name) dims = *(__local T(*) dims)0
// Not constexpr: the value is not known to the text.
#define MSL_FUNCTION_CONSTANT(T, name, index) __constant T name = (T)1;
#define MSL_KERNEL(name, id, function, ...)
