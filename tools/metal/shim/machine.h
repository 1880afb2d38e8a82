// What the host calls; `src/library.rs` declares the same.
#pragma once
#include <cstddef>
#include <cstdint>

constexpr int LILY_BINDINGS = 31;

struct LilyBinding {
    int32_t index;
    int32_t writable;
    void* at;
    std::size_t bytes;
};
// A function constant, or the length of a threadgroup parameter.
struct LilyBytes {
    int32_t index;
    const void* at;
    std::size_t bytes;
};
struct LilyLaunch {
    const char* kernel;
    uint32_t groups[3], threads[3];
    const LilyBinding* bindings;
    std::size_t binding_count;
    const LilyBytes* constants;
    std::size_t constant_count;
    const LilyBytes* memories;
    std::size_t memory_count;
    uint64_t seed;            // 0: threads in order
    int32_t check;            // of kernels that were compiled for it
    int32_t without_barrier;  // the barriers of this line do nothing; 0: none
    int32_t count;            // what moves, of kernels that are checked
};
struct LilyCounts {
    uint64_t accesses, switches, problems;
};
// Loads or stores of simdgroups, the lines that they touch, the bytes of all lanes.
struct LilyTraffic {
    uint64_t simdgroups, lines, bytes;
};
typedef void (*LilyProblem)(void* to, const char* kind, int32_t line, const char* text);
// Bits of each byte from `first` of a buffer on: 1 read, 2 written.
typedef void (*LilyTouched)(void* to, int32_t index, std::size_t first, const uint8_t* bits, std::size_t count);
// Of a binding.
typedef void (*LilyMoved)(void* to, int32_t index, const LilyTraffic* loads, const LilyTraffic* stores);
