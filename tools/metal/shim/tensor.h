// Metal 4's tensor operations for the executor, as far as kernels use them: tensors over memory, `matmul2d` of whole
// tiles, and a result that is spread over the threads in an order that no kernel could guess.
#pragma once
#include "kernel.h"

namespace metal {
template <class I, int Rank> struct dextents {
    I of[Rank];
    template <class... A> explicit dextents(A... a) : of{static_cast<I>(a)...} { static_assert(sizeof...(A) == Rank); }
};
template <class T, int N> struct array {
    T of[N];
    T operator[](int i) const { return of[i]; }
};
template <class T> using remove_addrspace_t = std::remove_cv_t<std::remove_reference_t<T>>;
template <int N> struct execution_simdgroups { static constexpr int threads = 32 * N; };

// Dimension 0 is the contiguous one.
template <class T, class Extents> struct tensor {
    T* first;
    int columns, rows;
    tensor(T* at, Extents e) : first(at), columns(e.of[0]), rows(e.of[1]) {}
    float at(int column, int row) const { return column < columns && row < rows ? static_cast<float>(first[row * columns + column]) : 0.0f; }
};
template <class T, class I, int Rank> tensor(T*, dextents<I, Rank>) -> tensor<T, dextents<I, Rank>>;

// Not zeroed, and one slot more than there are elements.
template <class T, int M, int N, int Threads> struct cooperative_tensor {
    static constexpr int SLOTS = M * N / Threads + 1;
    static_assert((M * N & (M * N - 1)) == 0 && M * N % Threads == 0, "tiles of a power of two of elements");
    T slots[SLOTS];
    cooperative_tensor() { memset(slots, 0xff, sizeof slots); }
    // An odd factor permutes a power of two.
    static int element(int slot) { return slot * Threads + int(machine_thread()) * 37 % Threads; }
    ushort get_capacity() const { return SLOTS; }
    bool is_valid_element(int slot) const { return slot < SLOTS - 1; }
    T& operator[](int slot) { return slots[slot]; }
    array<int, 2> get_multidimensional_index(int slot) const { return {{element(slot) % N, element(slot) / N}}; }
};
}  // namespace metal

namespace mpp {
namespace tensor_ops {
struct matmul2d_descriptor {
    enum class mode { multiply, multiply_accumulate };
    int m, n, k;
    bool transpose_left, transpose_right, relaxed;
    mode how;
    constexpr matmul2d_descriptor(int rows, int columns, int inputs, bool left = false, bool right = false, bool r = false, mode q = mode::multiply)
        : m(rows), n(columns), k(inputs), transpose_left(left), transpose_right(right), relaxed(r), how(q) {}
};
template <matmul2d_descriptor D, class Scope> struct matmul2d {
    template <class Left, class Right, class T> auto get_destination_cooperative_tensor() const {
        return metal::cooperative_tensor<T, D.m, D.n, Scope::threads>();
    }
    template <class Left, class Right, class C> void run(Left& left, Right& right, C& sums, MSL_LINE) const {
        metal::exchange(metal::Meeting::matrix, 0u, line);
        for (int slot = 0; slot + 1 < C::SLOTS; slot++) {
            const int row = C::element(slot) / D.n, column = C::element(slot) % D.n;
            float sum = D.how == matmul2d_descriptor::mode::multiply ? 0.0f : sums[slot];
            for (int k = 0; k < D.k; k++) {
                const float a = D.transpose_left ? left.at(row, k) : left.at(k, row);
                sum = ::fmaf(a, D.transpose_right ? right.at(k, column) : right.at(column, k), sum);
            }
            sums[slot] = sum;
        }
    }
};
}  // namespace tensor_ops
}  // namespace mpp
