// What every kernel with weights begins with, after the prelude: products of f32 rows with dense weights or affine codes.
// value = scale · code + bias, so a group's part of a sum is scale · Σ code·x + bias · Σ x: no weight is ever expanded in
// memory. Bytes may start anywhere.

constant uint DENSE [[function_constant(0)]];   // 1: elements of type TYPE; 0: codes, whose scales are of type TYPE
constant uint TYPE [[function_constant(1)]];
constant uint BITS [[function_constant(2)]];
constant uint GROUP [[function_constant(3)]];

// Inputs that a lane takes at a time: their codes fill BITS bytes.
constant constexpr uint RUN = 8;
// Outputs of a simdgroup.
constant constexpr uint ROWS = 4;

// How a matrix is stored; known when a pipeline is built.
struct Format {
    uint dense;
    uint type;
    uint bits;
    uint group;
};

// The format of the function constants above.
inline Format format() {
    return {DENSE, TYPE, BITS, GROUP};
}

// One matrix.
struct Weights {
    device const uchar* elements;
    device const uchar* scales;
    device const uchar* biases;
};

// Eight codes of a row's little-endian bit stream.
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

// This lane's part of x · rows first … first + 3 of a matrix.
inline void row_products(
    device const float* x, uint inputs, uint outputs, Weights w, Format f, uint first, uint lane, thread float* sums) {
    for (uint r = 0; r < ROWS; r++) {
        sums[r] = 0.0f;
    }
    for (uint run = lane; run * RUN < inputs; run += 32) {
        float values[RUN];
        float total = 0.0f;
        for (uint i = 0; i < RUN; i++) {
            const uint at = run * RUN + i;
            values[i] = at < inputs ? x[at] : 0.0f;
            total += values[i];
        }
        for (uint r = 0; r < ROWS && first + r < outputs; r++) {
            const uint row = first + r;
            float sum = 0.0f;
            if (f.dense != 0) {
                for (uint i = 0; i < RUN && run * RUN + i < inputs; i++) {
                    sum += values[i] * float_at(w.elements, f.type, row * inputs + run * RUN + i);
                }
                sums[r] += sum;
            } else {
                float codes[RUN];
                unpack(w.elements + row * (inputs * f.bits / 8), f.bits, run, codes);
                for (uint i = 0; i < RUN; i++) {
                    sum += values[i] * codes[i];
                }
                const uint at = row * (inputs / f.group) + run * RUN / f.group;
                sums[r] += float_at(w.scales, f.type, at) * sum + float_at(w.biases, f.type, at) * total;
            }
        }
    }
}
