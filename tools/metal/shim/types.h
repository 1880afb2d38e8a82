// What a Metal source may name without a device: scalars, vectors, numbers of 16 bits, mathematics.
// Who includes this has defined MSL_INLINE and metal::half.
// Only what is promised by the Metal specification is here; a conversion that Metal refuses is refused here too.
#pragma once
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

namespace metal {

template <class To, class From> MSL_INLINE To as_type(From from) {
    static_assert(sizeof(To) == sizeof(From), "as_type takes types of equal size");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

// Ties to even, NaN stays NaN. To float is implicit, from float is not.
struct bfloat {
    uint16_t bits;
    bfloat() = default;
    MSL_INLINE explicit bfloat(float f) {
        const uint u = as_type<uint>(f);
        const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
        bits = static_cast<uint16_t>(nan ? (u >> 16) | 0x40u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    }
    template <class I, class = std::enable_if_t<std::is_arithmetic_v<I>>>
    MSL_INLINE explicit bfloat(I i) : bfloat(static_cast<float>(i)) {}
    MSL_INLINE operator float() const { return as_type<float>(uint(bits) << 16); }
};
// Arithmetic of two bfloats is a bfloat.
#define MSL_BFLOAT(OP) \
    MSL_INLINE bfloat operator OP(bfloat a, bfloat b) { return bfloat(static_cast<float>(a) OP static_cast<float>(b)); }
MSL_BFLOAT(+) MSL_BFLOAT(-) MSL_BFLOAT(*) MSL_BFLOAT(/)
#undef MSL_BFLOAT

#ifndef MSL_ALIGNED
#define MSL_ALIGNED(at, bytes)
#endif

template <class T, int N> struct vec;

// A vector that fills a word is copied as one: a thread's load of it is one load.
template <std::size_t Bytes> struct Word { typedef void type; };
template <> struct Word<2> { typedef uint16_t type; };
template <> struct Word<4> { typedef uint32_t type; };
template <> struct Word<8> { typedef uint64_t type; };
template <> struct Word<16> { typedef unsigned __int128 type; };
template <class T, int N> MSL_INLINE void copy_lanes(T (&to)[N], const T (&from)[N]) {
#ifdef __CUDACC__
    memcpy(to, from, sizeof to);
#else
    typedef typename Word<sizeof(T[N])>::type W;
    if constexpr (std::is_void_v<W>) for (int i = 0; i < N; i++) to[i] = from[i];
    else *reinterpret_cast<W*>(to) = *reinterpret_cast<const W*>(from);
#endif
}

// Some lanes of a vector, as one writes `v.xy`; shares the vector's storage.
template <class T, int N, int... I> struct lanes_of {
    T lane[N];
    MSL_INLINE operator vec<T, sizeof...(I)>() const { return vec<T, sizeof...(I)>(lane[I]...); }
    MSL_INLINE lanes_of& operator=(vec<T, sizeof...(I)> v) {
        int k = 0;
        ((lane[I] = v[k++]), ...);
        return *this;
    }
    MSL_INLINE lanes_of& operator=(const lanes_of& other) { return *this = vec<T, sizeof...(I)>(other); }
};

#define MSL_VECTOR(N)                                                              \
    vec() = default;                                                               \
    MSL_INLINE vec(T all) { for (int i = 0; i < N; i++) lane[i] = all; }           \
    MSL_INLINE vec(const vec& o) { MSL_ALIGNED(&o, alignof(vec)); copy_lanes(lane, o.lane); } \
    MSL_INLINE vec& operator=(const vec& o) { MSL_ALIGNED(&o, alignof(vec)); MSL_ALIGNED(this, alignof(vec)); copy_lanes(lane, o.lane); return *this; } \
    template <class U> MSL_INLINE explicit vec(const vec<U, N>& o) { for (int i = 0; i < N; i++) lane[i] = static_cast<T>(o.lane[i]); } \
    MSL_INLINE T& operator[](int i) { return lane[i]; }                            \
    MSL_INLINE const T& operator[](int i) const { return lane[i]; }

template <class T> struct alignas(2 * sizeof(T)) vec<T, 2> {
    union { T lane[2]; struct { T x, y; }; lanes_of<T, 2, 1, 0> yx; };
    MSL_VECTOR(2)
    MSL_INLINE vec(T a, T b) : lane{a, b} {}
};
template <class T> struct alignas(4 * sizeof(T)) vec<T, 3> {
    union { T lane[3]; struct { T x, y, z; }; lanes_of<T, 3, 0, 1> xy; lanes_of<T, 3, 1, 2> yz; };
    MSL_VECTOR(3)
    MSL_INLINE vec(T a, T b, T c) : lane{a, b, c} {}
};
template <class T> struct alignas(4 * sizeof(T)) vec<T, 4> {
    union {
        T lane[4];
        struct { T x, y, z, w; };
        lanes_of<T, 4, 0, 1> xy;
        lanes_of<T, 4, 2, 3> zw;
        lanes_of<T, 4, 0, 1, 2> xyz;
    };
    MSL_VECTOR(4)
    MSL_INLINE vec(T a, T b, T c, T d) : lane{a, b, c, d} {}
    MSL_INLINE vec(vec<T, 2> a, vec<T, 2> b) : lane{a.lane[0], a.lane[1], b.lane[0], b.lane[1]} {}
};
#undef MSL_VECTOR

#define MSL_OPERATOR(OP)                                                                        \
    template <class T, int N> MSL_INLINE vec<T, N> operator OP(vec<T, N> a, vec<T, N> b) {      \
        vec<T, N> r;                                                                            \
        for (int i = 0; i < N; i++) r.lane[i] = a.lane[i] OP b.lane[i];                         \
        return r;                                                                               \
    }                                                                                           \
    template <class T, int N> MSL_INLINE vec<T, N> operator OP(vec<T, N> a, std::type_identity_t<T> b) { return a OP vec<T, N>(b); } \
    template <class T, int N> MSL_INLINE vec<T, N> operator OP(std::type_identity_t<T> a, vec<T, N> b) { return vec<T, N>(a) OP b; } \
    template <class T, int N> MSL_INLINE vec<T, N>& operator OP##=(vec<T, N>& a, vec<T, N> b) { return a = a OP b; } \
    template <class T, int N> MSL_INLINE vec<T, N>& operator OP##=(vec<T, N>& a, std::type_identity_t<T> b) { return a = a OP vec<T, N>(b); }
MSL_OPERATOR(+) MSL_OPERATOR(-) MSL_OPERATOR(*) MSL_OPERATOR(/)
MSL_OPERATOR(&) MSL_OPERATOR(|) MSL_OPERATOR(^) MSL_OPERATOR(<<) MSL_OPERATOR(>>)
#undef MSL_OPERATOR

#define MSL_NAMES(T) typedef vec<T, 2> T##2; typedef vec<T, 3> T##3; typedef vec<T, 4> T##4;
MSL_NAMES(char) MSL_NAMES(uchar) MSL_NAMES(short) MSL_NAMES(ushort) MSL_NAMES(int) MSL_NAMES(uint)
MSL_NAMES(long) MSL_NAMES(ulong) MSL_NAMES(float) MSL_NAMES(half) MSL_NAMES(bfloat)
#undef MSL_NAMES
static_assert(sizeof(float3) == 16 && alignof(float3) == 16 && alignof(uchar4) == 4, "layouts of the specification");

// Vectors with the alignment of their elements.
template <class T, int N> struct packed_vec {
    T lane[N];
    MSL_INLINE T& operator[](int i) { return lane[i]; }
    MSL_INLINE const T& operator[](int i) const { return lane[i]; }
    MSL_INLINE operator vec<T, N>() const {
        vec<T, N> r;
        for (int i = 0; i < N; i++) r.lane[i] = lane[i];
        return r;
    }
};
typedef packed_vec<float, 4> packed_float4;
typedef packed_vec<uchar, 4> packed_uchar4;

using std::conditional_t;
using std::is_same_v;
template <class T> using numeric_limits = std::numeric_limits<T>;

template <class T> MSL_INLINE T min(T a, T b) { return b < a ? b : a; }
template <class T> MSL_INLINE T max(T a, T b) { return a < b ? b : a; }
template <class T> MSL_INLINE T clamp(T x, T low, T high) { return min(max(x, low), high); }
#define MSL_FUNCTION(NAME, OF) MSL_INLINE float NAME(float x) { return OF(x); }
MSL_FUNCTION(exp, ::expf) MSL_FUNCTION(exp2, ::exp2f) MSL_FUNCTION(log, ::logf) MSL_FUNCTION(sqrt, ::sqrtf)
MSL_FUNCTION(floor, ::floorf) MSL_FUNCTION(ceil, ::ceilf) MSL_FUNCTION(rint, ::rintf) MSL_FUNCTION(fabs, ::fabsf)
MSL_FUNCTION(abs, ::fabsf) MSL_FUNCTION(sin, ::sinf) MSL_FUNCTION(cos, ::cosf) MSL_FUNCTION(tanh, ::tanhf)
#undef MSL_FUNCTION
MSL_INLINE float rsqrt(float x) { return 1.0f / ::sqrtf(x); }
MSL_INLINE float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
MSL_INLINE float pow(float a, float b) { return ::powf(a, b); }
MSL_INLINE bool isnan(float x) { return x != x; }
MSL_INLINE bool isinf(float x) { return ::fabsf(x) == std::numeric_limits<float>::infinity(); }
MSL_INLINE uint popcount(uint x) { return static_cast<uint>(std::popcount(x)); }
template <class T, int N> MSL_INLINE T dot(vec<T, N> a, vec<T, N> b) {
    T sum = a.lane[0] * b.lane[0];
    for (int i = 1; i < N; i++) sum = sum + a.lane[i] * b.lane[i];
    return sum;
}
namespace precise { using metal::exp; using metal::log; using metal::sqrt; using metal::rsqrt; using metal::sin; using metal::cos; using metal::pow; using metal::tanh; }

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }
enum memory_order { memory_order_relaxed };

}  // namespace metal
