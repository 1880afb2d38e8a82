// What every kernel with weights begins with, after the prelude: products of f32 rows with dense weights or affine codes.
// value = scale · code + bias, so a group's part of a sum is scale · Σ code·x + bias · Σ x: no weight is ever expanded in
// memory. Bytes may start anywhere; where they start at whole words they are loaded as such.

// How a matrix is stored; known when a pipeline is built, so that what follows from it is folded.
struct Format {
    uint dense;  // 1: elements of `type`; 0: codes, whose scales are of `type`
    uint type;
    uint bits;
    uint group;
    uint align;  // bytes that every row, scale and bias of the matrix is a multiple of: 1, 4 or 16
};

inline Format format_of(uint code) {
    return {code & 1, code >> 1 & 3, code >> 3 & 15, code >> 7 & 1023, code >> 17 & 31};
}

constant uint WEIGHT [[function_constant(0)]];   // the format of the first matrix
constant uint X_ROWS [[function_constant(1)]];   // activation rows that share a load of the weights, at most MOST_X_ROWS

// The format of the first matrix.
inline Format format() {
    return format_of(WEIGHT);
}

constant constexpr uint MOST_X_ROWS = 4;
// Outputs of a set of lanes.
constant constexpr uint ROWS = 4;
// Inputs that a lane takes at a time; their codes fill as many words as a code has bits.
constant constexpr uint SPAN = 32;
constant constexpr uint MOST_BITS = 8;

// One matrix.
struct Weights {
    device const uchar* elements;
    device const uchar* scales;
    device const uchar* biases;
};

// Activation rows, one after the other; those past the last one are the last one again, and nobody stores their sums.
struct PlainRows {
    device const float* x;
    uint stride;
    uint last;
    float4 four(uint row, uint i) const thread {
        return *reinterpret_cast<device const float4*>(x + min(row, last) * stride + i);
    }
    float one(uint row, uint i) const thread {
        return x[min(row, last) * stride + i];
    }
};

// Which lanes of a simdgroup work together, and on which outputs: fewer than 32 where a row has fewer runs.
struct Work {
    uint first;  // output
    uint lane;   // among its set
    uint lanes;  // of a set
};

inline Work work(uint group, uint simdgroup, uint simdgroups, uint lane, uint lanes) {
    const uint set = (group * simdgroups + simdgroup) * (32 / lanes) + lane / lanes;
    return {set * ROWS, lane % lanes, lanes};
}

// The sum over a set of lanes, in each of them.
inline float sum_of(float value, uint lanes) {
    if (lanes == 32) {
        return simd_sum(value);
    }
    for (uint by = lanes / 2; by > 0; by /= 2) {
        value += simd_shuffle_xor(value, static_cast<ushort>(by));
    }
    return value;
}

// The words that hold a run's codes.
inline void load_words(device const uchar* from, Format f, thread uint* words) {
    if (f.align == 16 && f.bits % 4 == 0) {
        for (uint i = 0; i < f.bits / 4; i++) {
            const uint4 four = reinterpret_cast<device const uint4*>(from)[i];
            words[4 * i] = four.x;
            words[4 * i + 1] = four.y;
            words[4 * i + 2] = four.z;
            words[4 * i + 3] = four.w;
        }
    } else if (f.align >= 4) {
        for (uint i = 0; i < f.bits; i++) {
            words[i] = reinterpret_cast<device const uint*>(from)[i];
        }
    } else {
        for (uint i = 0; i < f.bits; i++) {
            device const uchar* at = from + 4 * i;
            words[i] = uint(at[0]) | uint(at[1]) << 8 | uint(at[2]) << 16 | uint(at[3]) << 24;
        }
    }
}

// Code i of a run's little-endian bit stream.
inline float code_of(thread const uint* words, uint bits, uint i) {
    const uint at = i * bits;
    uint code = words[at / 32] >> at % 32;
    if (at % 32 + bits > 32) {
        code |= words[at / 32 + 1] << (32 - at % 32);
    }
    return static_cast<float>(code & ((1u << bits) - 1));
}

// One run of activations times the same run of a row of codes.
inline float run_product(thread const float* values, thread const uint* words, uint bits) {
    float sum = 0.0f;
    for (uint i = 0; i < SPAN; i++) {
        sum += values[i] * code_of(words, bits, i);
    }
    return sum;
}

// Affine codes: `sums[row · ROWS + r]` gets this lane's part of activation row `row` times output first + r.
template <class X>
inline void affine_products(X x, uint inputs, uint outputs, Weights w, Format f, Work work, thread float* sums) {
    for (uint run = work.lane; run * SPAN < inputs; run += work.lanes) {
        uint words[ROWS][MOST_BITS];
        float scales[ROWS];
        float biases[ROWS];
        for (uint r = 0; r < ROWS; r++) {
            // Outputs past the last one are the last one again.
            const uint output = min(work.first + r, outputs - 1);
            load_words(w.elements + ulong(output) * (inputs * f.bits / 8) + run * 4 * f.bits, f, words[r]);
            const uint at = output * (inputs / f.group) + run * SPAN / f.group;
            scales[r] = float_at(w.scales, f.type, at);
            biases[r] = float_at(w.biases, f.type, at);
        }
        for (uint row = 0; row < X_ROWS; row++) {
            float values[SPAN];
            float total = 0.0f;
            for (uint i = 0; i < SPAN; i += 4) {
                const float4 four = x.four(row, run * SPAN + i);
                values[i] = four.x;
                values[i + 1] = four.y;
                values[i + 2] = four.z;
                values[i + 3] = four.w;
                total += four.x + four.y + (four.z + four.w);
            }
            for (uint r = 0; r < ROWS; r++) {
                sums[row * ROWS + r] += scales[r] * run_product(values, words[r], f.bits) + biases[r] * total;
            }
        }
    }
}

// The same of dense elements, whose rows may have any length.
template <class X>
inline void dense_products(X x, uint inputs, uint outputs, Weights w, Format f, Work work, thread float* sums) {
    for (uint i = work.lane; i < inputs; i += work.lanes) {
        float weights[ROWS];
        for (uint r = 0; r < ROWS; r++) {
            weights[r] = float_at(w.elements, f.type, min(work.first + r, outputs - 1) * inputs + i);
        }
        for (uint row = 0; row < X_ROWS; row++) {
            const float value = x.one(row, i);
            for (uint r = 0; r < ROWS; r++) {
                sums[row * ROWS + r] += value * weights[r];
            }
        }
    }
}

// This lane's part of the activation rows times outputs first … first + 3 of a matrix.
template <class X>
inline void row_products(X x, uint inputs, uint outputs, Weights w, Format f, Work work, thread float* sums) {
    for (uint i = 0; i < MOST_X_ROWS * ROWS; i++) {
        sums[i] = 0.0f;
    }
    if (f.dense != 0) {
        dense_products(x, inputs, outputs, w, f, work, sums);
    } else {
        affine_products(x, inputs, outputs, w, f, work, sums);
    }
}

// Codes that are unpacked together where not a whole span is needed: they fill as many bytes as a code has bits.
constant constexpr uint RUN = 8;

// Eight codes of a row's bit stream, at any byte.
inline void unpack(device const uchar* row, uint bits, uint run, thread float* codes) {
    device const uchar* bytes = row + run * bits;
    ulong word = 0;
    for (uint i = 0; i < bits; i++) {
        word |= static_cast<ulong>(bytes[i]) << (8 * i);
    }
    for (uint i = 0; i < RUN; i++) {
        codes[i] = static_cast<float>(static_cast<uint>(word >> (bits * i)) & ((1u << bits) - 1));
    }
}
