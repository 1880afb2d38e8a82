// out[t, c] = silu(Σ_j weight[j, c] · x[t − taps + 1 + j, c]), rows before the step from the state; then the state of the
// next step: its last taps − 1 rows. One thread an element of either; the state's rows come after the step's.

struct Conv1dSiluArguments {
    uint cols;
    uint taps;
    uint first_row;
    uint rows;
};

// Row i of the step, or of the state before it.
inline float raw(device const float* x, device const float* state, constant Conv1dSiluArguments& args, int i, uint c) {
    const int before = static_cast<int>(args.taps) - 1;
    return i < 0 ? state[static_cast<uint>(before + i) * args.cols + c] : x[(args.first_row + static_cast<uint>(i)) * args.cols + c];
}

kernel void conv1d_silu(
    device const float* x [[buffer(0)]],
    device const float* weight [[buffer(1)]],
    device const float* state_in [[buffer(2)]],
    device float* state_out [[buffer(3)]],
    device float* out [[buffer(4)]],
    constant Conv1dSiluArguments& args [[buffer(5)]],
    uint3 at [[thread_position_in_grid]])
{
    if (at.x >= args.cols) {
        return;
    }
    const int before = static_cast<int>(args.taps) - 1;
    const int row = static_cast<int>(at.y);
    if (at.y < args.rows) {
        float sum = 0.0f;
        for (uint j = 0; j < args.taps; j++) {
            sum += weight[j * args.cols + at.x] * raw(x, state_in, args, row - before + static_cast<int>(j), at.x);
        }
        out[(args.first_row + at.y) * args.cols + at.x] = silu(sum);
    } else {
        const uint slot = at.y - args.rows;
        const int from = static_cast<int>(args.rows) - before + static_cast<int>(slot);
        state_out[slot * args.cols + at.x] = raw(x, state_in, args, from, at.x);
    }
}
