// What a Metal source may name on a device, for the executor: threads of a threadgroup are fibers, and where they meet
// (barriers, simd operations, atomics) they call the machine.
#pragma once
#define MSL_INLINE __attribute__((always_inline)) inline
#define MSL_UNCHECKED __attribute__((no_sanitize("thread"), noinline))
namespace metal {
typedef _Float16 half;
void machine_misaligned(const void* at, unsigned long bytes);
}
#if defined(__SANITIZE_THREAD__)
#define MSL_CHECKED 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define MSL_CHECKED 1
#endif
#endif
#ifdef MSL_CHECKED
// A compiler may cut a vector's load into its lanes, and believes that the vector is aligned: so it must not see the question.
#define MSL_ALIGNED(at, bytes)                                                                 \
    do {                                                                                       \
        const void* msl_at = (at);                                                             \
        asm volatile("" : "+r"(msl_at));                                                       \
        if (reinterpret_cast<unsigned long>(msl_at) % (bytes)) machine_misaligned(msl_at, bytes); \
    } while (0)
#endif
#include "types.h"

using metal::as_type;
using metal::bfloat;
using metal::half;
#define MSL_NAMES(T) using metal::T##2; using metal::T##3; using metal::T##4;
MSL_NAMES(char) MSL_NAMES(uchar) MSL_NAMES(short) MSL_NAMES(ushort) MSL_NAMES(int) MSL_NAMES(uint)
MSL_NAMES(long) MSL_NAMES(ulong) MSL_NAMES(float) MSL_NAMES(half) MSL_NAMES(bfloat)
#undef MSL_NAMES

// The translation puts `msl_` before these words of the language.
#define msl_kernel
#define msl_device
#define msl_constant const
#define msl_program_constant const
#define msl_threadgroup
#define msl_thread
#define msl_inline inline

namespace metal {

// ---- the machine ----
enum class Meeting : int { shuffle, reduce, prefix, ballot, matrix, barrier };
// Every lane of a simdgroup gives up to 64 bytes; when all have come to the same line, each gets all of them.
const unsigned char* machine_exchange(Meeting what, int line, const void* mine, int bytes);
void machine_threadgroup_barrier(int flags, int line);
void machine_simdgroup_barrier(int flags, int line);
uint machine_lane();
uint machine_thread();
uint machine_taking_part();  // lanes of the exchange just made, as bits
void* machine_threadgroup_memory(int slot, std::size_t bytes);
enum class Atomic : int { update, load, store };
void machine_atomic(const void* at, int bytes, Atomic how, int line);

#define MSL_LINE int line = __builtin_LINE()
inline void threadgroup_barrier(mem_flags flags, MSL_LINE) { machine_threadgroup_barrier(int(flags), line); }
inline void simdgroup_barrier(mem_flags flags, MSL_LINE) { machine_simdgroup_barrier(int(flags), line); }

// ---- simd operations ----
template <class T> struct Given {
    const unsigned char* all;
    T operator[](uint lane) const {
        T value;
        memcpy(&value, all + 64 * (lane & 31), sizeof value);
        return value;
    }
};
template <class T> inline Given<T> exchange(Meeting what, T value, int line) {
    static_assert(sizeof(T) <= 64, "a simd operand of at most 64 bytes");
    return {machine_exchange(what, line, &value, sizeof value)};
}
// What Metal leaves undefined is poison: NaN in every float, large in every integer.
template <class T> inline T poison() {
    T value;
    memset(&value, 0xff, sizeof value);
    return value;
}
template <class T> inline T simd_shuffle(T x, ushort from, MSL_LINE) { return exchange(Meeting::shuffle, x, line)[from]; }
template <class T> inline T simd_shuffle_xor(T x, ushort mask, MSL_LINE) { return exchange(Meeting::shuffle, x, line)[machine_lane() ^ mask]; }
template <class T> inline T simd_shuffle_down(T x, ushort by, MSL_LINE) {
    auto all = exchange(Meeting::shuffle, x, line);
    const uint from = machine_lane() + by;
    return from < 32 ? all[from] : poison<T>();
}
template <class T> inline T simd_shuffle_up(T x, ushort by, MSL_LINE) {
    auto all = exchange(Meeting::shuffle, x, line);
    return machine_lane() >= by ? all[machine_lane() - by] : poison<T>();
}
template <class T> inline T simd_broadcast(T x, ushort from, MSL_LINE) { return exchange(Meeting::shuffle, x, line)[from]; }
template <class T> inline T simd_broadcast_first(T x, MSL_LINE) {
    auto all = exchange(Meeting::shuffle, x, line);
    return all[static_cast<uint>(__builtin_ctz(machine_taking_part()))];
}
// As a tree over the lanes that take part: 16, 8, 4, 2, 1.
template <class T, class F> inline T reduce(T x, F f, int line) {
    auto all = exchange(Meeting::reduce, x, line);
    uint on = machine_taking_part();
    T value[32];
    for (uint i = 0; i < 32; i++) value[i] = all[i];
    for (uint width = 16; width > 0; width /= 2)
        for (uint i = 0; i < width; i++) {
            const bool here = on >> i & 1, there = on >> (i + width) & 1;
            if (here && there) value[i] = f(value[i], value[i + width]);
            else if (there) value[i] = value[i + width], on |= 1u << i;
        }
    return value[0];
}
template <class T> inline T simd_sum(T x, MSL_LINE) { return reduce(x, [](T a, T b) { return T(a + b); }, line); }
template <class T> inline T simd_max(T x, MSL_LINE) { return reduce(x, [](T a, T b) { return a < b ? b : a; }, line); }
template <class T> inline T simd_min(T x, MSL_LINE) { return reduce(x, [](T a, T b) { return b < a ? b : a; }, line); }
template <class T> inline T simd_or(T x, MSL_LINE) { return reduce(x, [](T a, T b) { return T(a | b); }, line); }
template <class T> inline T simd_and(T x, MSL_LINE) { return reduce(x, [](T a, T b) { return T(a & b); }, line); }
inline bool simd_any(bool x, MSL_LINE) { return simd_or<uint>(x, line) != 0; }
inline bool simd_all(bool x, MSL_LINE) { return simd_and<uint>(x, line) != 0; }
template <class T> inline T simd_prefix_exclusive_sum(T x, MSL_LINE) {
    auto all = exchange(Meeting::prefix, x, line);
    T sum = T(0);
    for (uint i = 0; i < machine_lane(); i++) sum = T(sum + all[i]);
    return sum;
}
template <class T> inline T simd_prefix_inclusive_sum(T x, MSL_LINE) { return T(simd_prefix_exclusive_sum(x, line) + x); }

// ---- atomics ----
template <class T> struct atomic { T value; };
typedef atomic<uint> atomic_uint;
typedef atomic<int> atomic_int;
typedef atomic<float> atomic_float;
template <class T> MSL_UNCHECKED T atomic_load_explicit(const volatile atomic<T>* at, memory_order, MSL_LINE) {
    machine_atomic(const_cast<const atomic<T>*>(at), sizeof(T), Atomic::load, line);
    return at->value;
}
template <class T> MSL_UNCHECKED void atomic_store_explicit(volatile atomic<T>* at, T value, memory_order, MSL_LINE) {
    machine_atomic(const_cast<const atomic<T>*>(at), sizeof(T), Atomic::store, line);
    at->value = value;
}
#define MSL_UPDATE(NAME, NEW)                                                                             \
    template <class T> MSL_UNCHECKED T NAME(volatile atomic<T>* at, T by, memory_order, MSL_LINE) {       \
        machine_atomic(const_cast<const atomic<T>*>(at), sizeof(T), Atomic::update, line);                \
        const T old = at->value;                                                                          \
        at->value = (NEW);                                                                                \
        return old;                                                                                       \
    }
MSL_UPDATE(atomic_fetch_add_explicit, old + by) MSL_UPDATE(atomic_exchange_explicit, by)
MSL_UPDATE(atomic_fetch_max_explicit, old < by ? by : old) MSL_UPDATE(atomic_fetch_min_explicit, by < old ? by : old)
MSL_UPDATE(atomic_fetch_or_explicit, old | by)
#undef MSL_UPDATE

// ---- simdgroup_matrix: 8×8, two neighbours of a row in each lane ----
MSL_INLINE uint matrix_row(uint lane) { return (lane >> 4 & 1) * 4 + (lane >> 1 & 3); }
MSL_INLINE uint matrix_column(uint lane) { return (lane >> 3 & 1) * 4 + (lane & 1) * 2; }
MSL_INLINE uint matrix_lane(uint row, uint column) { return (row >> 2) << 4 | (row & 3) << 1 | (column >> 2) << 3 | (column >> 1 & 1); }
template <class T, int Rows, int Columns> struct simdgroup_matrix {
    static_assert(Rows == 8 && Columns == 8, "matrices are 8×8");
    vec<T, 2> pair;
    vec<T, 2>& thread_elements() { return pair; }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;
template <class T, int Rows, int Columns> inline simdgroup_matrix<T, Rows, Columns> make_filled_simdgroup_matrix(T value) {
    return {vec<T, 2>(value)};
}
template <class T> inline void simdgroup_load(simdgroup_matrix<T, 8, 8>& m, const T* from, ulong stride = 8, ulong2 origin = ulong2(0), bool transpose = false) {
    for (uint i = 0; i < 2; i++) {
        ulong row = matrix_row(machine_lane()), column = matrix_column(machine_lane()) + i;
        if (transpose) std::swap(row, column);
        m.pair.lane[i] = from[(origin.lane[1] + row) * stride + origin.lane[0] + column];
    }
}
template <class T> inline void simdgroup_store(const simdgroup_matrix<T, 8, 8>& m, T* to, ulong stride = 8, ulong2 origin = ulong2(0), bool transpose = false) {
    for (uint i = 0; i < 2; i++) {
        ulong row = matrix_row(machine_lane()), column = matrix_column(machine_lane()) + i;
        if (transpose) std::swap(row, column);
        to[(origin.lane[1] + row) * stride + origin.lane[0] + column] = m.pair.lane[i];
    }
}
template <class D, class A, class B, class C>
inline void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a, const simdgroup_matrix<B, 8, 8>& b,
                                          const simdgroup_matrix<C, 8, 8>& c, MSL_LINE) {
    struct Operands { float a[2], b[2]; };
    Operands mine;
    for (int i = 0; i < 2; i++) mine.a[i] = static_cast<float>(a.pair.lane[i]), mine.b[i] = static_cast<float>(b.pair.lane[i]);
    auto all = exchange(Meeting::matrix, mine, line);
    const uint row = matrix_row(machine_lane()), column = matrix_column(machine_lane());
    for (uint i = 0; i < 2; i++) {
        float sum = static_cast<float>(c.pair.lane[i]);
        for (uint k = 0; k < 8; k++) sum = ::fmaf(all[matrix_lane(row, k)].a[k & 1], all[matrix_lane(k, column)].b[i], sum);
        d.pair.lane[i] = static_cast<D>(sum);
    }
}

// ---- the table of kernels ----
enum class Attribute : int { grid_position, position, group_position, index, lane, simdgroup, simdgroups, threads, groups, grid_threads, width };
struct Parameter { char kind; int index; };  // 'b'uffer, 't'hreadgroup memory, 'a'ttribute
struct Place {                               // of the running thread
    void* const* buffers;
    void* const* memories;
    uint3 attribute(Attribute what) const;
};
template <class P> struct Narrow { static P of(uint3 v) { return static_cast<P>(v.lane[0]); } };
template <class T> struct Narrow<vec<T, 2>> { static vec<T, 2> of(uint3 v) { return {static_cast<T>(v.lane[0]), static_cast<T>(v.lane[1])}; } };
template <class T> struct Narrow<vec<T, 3>> { static vec<T, 3> of(uint3 v) { return {static_cast<T>(v.lane[0]), static_cast<T>(v.lane[1]), static_cast<T>(v.lane[2])}; } };
template <class P> MSL_INLINE decltype(auto) argument(const Parameter p, const Place& place) {
    if constexpr (std::is_pointer_v<P>) return reinterpret_cast<P>((p.kind == 't' ? place.memories : place.buffers)[p.index]);
    else if constexpr (std::is_reference_v<P>) return *reinterpret_cast<std::remove_reference_t<P>*>(place.buffers[p.index]);
    else return Narrow<std::remove_cv_t<P>>::of(place.attribute(static_cast<Attribute>(p.index)));
}
template <class... P, std::size_t... I> MSL_INLINE void call(void (*f)(P...), const Parameter* table, const Place& place, std::index_sequence<I...>) {
    f(static_cast<P>(argument<P>(table[I], place))...);
}
template <class... P> MSL_INLINE void call(void (*f)(P...), const Parameter* table, const Place& place) {
    call(f, table, place, std::index_sequence_for<P...>{});
}
struct Kernel {
    const char* name;
    void (*run)(const Place&);
    Kernel* next;
    static Kernel* first;
    Kernel(const char* n, void (*r)(const Place&)) : name(n), run(r), next(first) { first = this; }
};
struct Constant {
    int index;
    void* at;
    std::size_t bytes;
    bool set = false;
    Constant* next;
    static Constant* first;
    Constant(int i, void* a, std::size_t b) : index(i), at(a), bytes(b), next(first) { first = this; }
};

}  // namespace metal
using metal::atomic_float;
using metal::atomic_int;
using metal::atomic_uint;

#define MSL_THREADGROUP_ARRAY(T, name, dims, slot) \
    std::remove_reference_t<decltype(*(T(*) dims) nullptr)>& name = *(T(*) dims)metal::machine_threadgroup_memory(slot, sizeof(T dims))
#define MSL_FUNCTION_CONSTANT(T, name, index) \
    static T name;                            \
    static metal::Constant msl_constant_##name(index, &name, sizeof(T));
#define MSL_KERNEL(name, id, function, ...)                                                                          \
    static const metal::Parameter msl_parameters_##id[] = {__VA_ARGS__};                                             \
    static void msl_run_##id(const metal::Place& place) { metal::call(function, msl_parameters_##id, place); }       \
    static metal::Kernel msl_kernel_##id(name, msl_run_##id);
