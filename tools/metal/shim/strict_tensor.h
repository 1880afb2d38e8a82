// Metal 4's tensor operations for the strict front end: declarations that keep element types and address spaces.
#pragma once
#include "strict.h"

namespace metal {
template <class I, int Rank> struct dextents {
    template <class... A> explicit dextents(A... a) { static_assert(sizeof...(A) == Rank, "an extent for each dimension"); }
};
template <class T, int N> struct array {
    T of[N];
    T operator[](int i) const { return of[i]; }
};
template <class T> struct msl_plain { typedef T type; };
template <class T> struct msl_plain<__private T> { typedef T type; };
template <class T> using remove_addrspace_t = typename msl_plain<T>::type;
template <int N> struct execution_simdgroups {};
// A function makes it: without the generic address space no constructor is called in an expression, and a variable whose
// value was refused has no type to go on with.
template <class T, class Extents> struct msl_tensor {
    T* first;
};
template <class T, class I, int Rank> msl_tensor<T, dextents<I, Rank>> tensor(T* at, dextents<I, Rank>) {
    msl_tensor<T, dextents<I, Rank>> made;
    made.first = at;
    return made;
}
template <class T> struct is_tensor { enum { value = 0 }; };
template <class T, class E> struct is_tensor<msl_tensor<T, E>> { enum { value = 1 }; };
template <class T> struct cooperative_tensor {
    T slots[1];
    ushort get_capacity() const { return 1; }
    bool is_valid_element(int) const { return true; }
    __private T& operator[](int) __private { return slots[0]; }
    array<int, 2> get_multidimensional_index(int) const { return array<int, 2>(); }
};
}  // namespace metal

namespace mpp {
namespace tensor_ops {
struct matmul2d_descriptor {
    enum class mode { multiply, multiply_accumulate };
    int m, n;
    constexpr matmul2d_descriptor(int rows, int columns, int, bool = false, bool = false, bool = false, mode = mode::multiply) : m(rows), n(columns) {}
    // This C++ has no classes as template arguments.
    constexpr operator long() const { return static_cast<long>(m) << 16 | n; }
};
template <long Descriptor, class Scope> struct matmul2d {
    template <class Left, class Right, class T> metal::cooperative_tensor<T> get_destination_cooperative_tensor() const {
        static_assert(metal::is_tensor<Left>::value && metal::is_tensor<Right>::value, "operand types come before the element type");
        return metal::cooperative_tensor<T>();
    }
    // Operands can be changed, as in Metal.
    template <class Left, class Right, class C> void run(__private Left&, __private Right&, __private C&) const {}
};
}  // namespace tensor_ops
}  // namespace mpp
