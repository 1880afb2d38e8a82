// normed = x · rsqrt(mean(x²) + eps) · weight, and normed · Wᵀ of up to four matrices. As `linear_rows`; each simdgroup sums
// the squares of its rows for itself, which is cheaper than to wait for another. The factor is taken out of the products, and
// the first threadgroup of a row block writes the normed rows.

constant uint FORMAT1 [[function_constant(2)]];
constant uint FORMAT2 [[function_constant(3)]];
constant uint FORMAT3 [[function_constant(4)]];

struct NormedPart {
    uint outputs;
    uint first_group;  // threadgroups of the parts before
    uint elements_at;  // bytes from each buffer's place to its first element
    uint scales_at;
    uint biases_at;
};

struct NormLinearsArguments {
    uint inputs;
    uint rows;
    uint lanes;  // of a set
    uint parts;
    float eps;
};

struct NormedParts {
    NormedPart part[4];
};

// Activation rows times the weight of their norm.
struct WeightedRows {
    PlainRows rows;
    device const float* weight;
    float4 four(uint row, uint i) const thread {
        // Constants begin at multiples of 4 bytes, not of 16.
        return rows.four(row, i) * float4(weight[i], weight[i + 1], weight[i + 2], weight[i + 3]);
    }
    float one(uint row, uint i) const thread {
        return rows.one(row, i) * weight[i];
    }
};

inline float factor_of(PlainRows x, uint row, uint inputs, float eps, uint lane) {
    float squares = 0.0f;
    for (uint i = lane; i < inputs; i += 32) {
        const float value = x.one(row, i);
        squares += value * value;
    }
    return precise::rsqrt(simd_sum(squares) / static_cast<float>(inputs) + eps);
}

inline void part_products(
    WeightedRows x, uint inputs, constant NormedPart& part, Weights w, Format f, thread const float* factors, uint rows, Work here, device float* out) {
    const Weights at = {w.elements + part.elements_at, w.scales + part.scales_at, w.biases + part.biases_at};
    float sums[MOST_X_ROWS * ROWS];
    row_products(x, inputs, part.outputs, at, f, here, sums);
    for (uint row = 0; row < X_ROWS; row++) {
        for (uint r = 0; r < ROWS; r++) {
            const float sum = sum_of(sums[row * ROWS + r], here.lanes) * factors[row];
            if (here.lane == 0 && row < rows && here.first + r < part.outputs) {
                out[row * part.outputs + here.first + r] = sum;
            }
        }
    }
}

kernel void norm_linears(
    device const float* x [[buffer(0)]],
    device const float* weight [[buffer(1)]],
    device float* normed [[buffer(2)]],
    device const uchar* elements0 [[buffer(3)]],
    device const uchar* scales0 [[buffer(4)]],
    device const uchar* biases0 [[buffer(5)]],
    device float* out0 [[buffer(6)]],
    device const uchar* elements1 [[buffer(7)]],
    device const uchar* scales1 [[buffer(8)]],
    device const uchar* biases1 [[buffer(9)]],
    device float* out1 [[buffer(10)]],
    device const uchar* elements2 [[buffer(11)]],
    device const uchar* scales2 [[buffer(12)]],
    device const uchar* biases2 [[buffer(13)]],
    device float* out2 [[buffer(14)]],
    device const uchar* elements3 [[buffer(15)]],
    device const uchar* scales3 [[buffer(16)]],
    device const uchar* biases3 [[buffer(17)]],
    device float* out3 [[buffer(18)]],
    constant NormLinearsArguments& args [[buffer(19)]],
    constant NormedParts& parts [[buffer(20)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]])
{
    const uint first_row = group.y * X_ROWS;
    const uint rows = min(X_ROWS, args.rows - first_row);
    const PlainRows plain = {x + first_row * args.inputs, args.inputs, rows - 1};
    float factors[MOST_X_ROWS];
    for (uint row = 0; row < X_ROWS; row++) {
        factors[row] = factor_of(plain, row, args.inputs, args.eps, lane);
    }
    if (group.x == 0) {
        for (uint row = 0; row < rows; row++) {
            for (uint i = tid; i < args.inputs; i += threads) {
                normed[(first_row + row) * args.inputs + i] = plain.one(row, i) * factors[row] * weight[i];
            }
        }
    }
    uint which = 0;
    while (which + 1 < args.parts && group.x >= parts.part[which + 1].first_group) {
        which++;
    }
    constant NormedPart& part = parts.part[which];
    const Work here = work(group.x - part.first_group, simdgroup, simdgroups, lane, args.lanes);
    const WeightedRows weighted = {plain, weight};
    const ulong at = ulong(first_row) * part.outputs;
    // All threads of a threadgroup take the same way.
    if (which == 0) {
        part_products(weighted, args.inputs, part, {elements0, scales0, biases0}, format(), factors, rows, here, out0 + at);
    } else if (which == 1) {
        part_products(weighted, args.inputs, part, {elements1, scales1, biases1}, format_of(FORMAT1), factors, rows, here, out1 + at);
    } else if (which == 2) {
        part_products(weighted, args.inputs, part, {elements2, scales2, biases2}, format_of(FORMAT2), factors, rows, here, out2 + at);
    } else {
        part_products(weighted, args.inputs, part, {elements3, scales3, biases3}, format_of(FORMAT3), factors, rows, here, out3 + at);
    }
}
