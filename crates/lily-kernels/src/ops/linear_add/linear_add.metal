// out = residual + x · Wᵀ for few rows, as `linear_rows`. With SCALED, x is a row of heads that lack the factor of their
// norm: rsqrt(Σ squares / dim + eps), which the threadgroup finds first.

constant uint SCALED [[function_constant(2)]];

constant constexpr uint MOST_HEADS = 128;

struct LinearAddArguments {
    uint outputs;
    uint inputs;
    uint rows;
    uint lanes;  // of a set
    uint elements_at;  // bytes from each buffer's place to its first element
    uint scales_at;
    uint biases_at;
    uint dim;
    uint squares;  // of a row
    float eps;
};

// Activation rows times the factors of their heads.
struct ScaledRows {
    PlainRows rows;
    threadgroup const float* factors;
    uint dim;
    uint heads;
    float factor(uint row, uint i) const thread {
        return factors[row * heads + i / dim];
    }
    float4 four(uint row, uint i) const thread {
        const float4 x = rows.four(row, i);
        return float4(x.x * factor(row, i), x.y * factor(row, i + 1), x.z * factor(row, i + 2), x.w * factor(row, i + 3));
    }
    float one(uint row, uint i) const thread {
        return rows.one(row, i) * factor(row, i);
    }
};

kernel void linear_add_rows(
    device const float* x [[buffer(0)]],
    device const float* squares [[buffer(1)]],
    device const uchar* elements [[buffer(2)]],
    device const uchar* scales [[buffer(3)]],
    device const uchar* biases [[buffer(4)]],
    device const float* residual [[buffer(5)]],
    device float* out [[buffer(6)]],
    constant LinearAddArguments& args [[buffer(7)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]])
{
    threadgroup float factors[MOST_X_ROWS * MOST_HEADS];
    const Weights w = {elements + args.elements_at, scales + args.scales_at, biases + args.biases_at};
    const Work here = work(group.x, simdgroup, simdgroups, lane, args.lanes);
    const uint first_row = group.y * X_ROWS;
    const uint rows = min(X_ROWS, args.rows - first_row);
    const PlainRows plain = {x + first_row * args.inputs, args.inputs, rows - 1};
    float sums[MOST_X_ROWS * ROWS];
    if (SCALED != 0) {
        const uint heads = args.inputs / args.dim;
        const uint parts = args.squares / heads;
        for (uint i = tid; i < X_ROWS * heads; i += threads) {
            device const float* of_head = squares + (first_row + min(i / heads, rows - 1)) * args.squares + i % heads * parts;
            float sum = 0.0f;
            for (uint p = 0; p < parts; p++) {
                sum += of_head[p];
            }
            factors[i] = precise::rsqrt(sum / static_cast<float>(args.dim) + args.eps);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const ScaledRows scaled = {plain, factors, args.dim, heads};
        row_products(scaled, args.inputs, args.outputs, w, format(), here, sums);
    } else {
        row_products(plain, args.inputs, args.outputs, w, format(), here, sums);
    }
    for (uint row = 0; row < X_ROWS; row++) {
        for (uint r = 0; r < ROWS; r++) {
            const float sum = sum_of(sums[row * ROWS + r], args.lanes);
            if (here.lane == 0 && row < rows && here.first + r < args.outputs) {
                const uint at = (first_row + row) * args.outputs + here.first + r;
                out[at] = residual[at] + sum;
            }
        }
    }
}
