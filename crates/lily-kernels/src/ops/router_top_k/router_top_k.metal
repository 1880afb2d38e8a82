// The K largest of E logits, ties to the lower expert, and their softmax; one simdgroup a token. A lane looks at experts
// lane, lane + 32, …; a round takes the best that comes after the last one taken. NaN counts as −∞, and a row that has one
// has NaN for all weights.

struct RouterTopKArguments {
    uint experts;
    uint top_k;
};

kernel void router_top_k(
    device const float* logits [[buffer(0)]],
    device uint* experts [[buffer(1)]],
    device float* weights [[buffer(2)]],
    constant RouterTopKArguments& args [[buffer(3)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]])
{
    device const float* row = logits + group.y * args.experts;
    const float least = -numeric_limits<float>::infinity();
    bool broken = false;
    float last = 0.0f;
    uint last_id = 0;
    float largest = 0.0f;
    float total = 0.0f;
    for (uint rank = 0; rank < args.top_k; rank++) {
        float best = 0.0f;
        uint best_id = args.experts;
        for (uint e = lane; e < args.experts; e += 32) {
            const bool is_number = !isnan(row[e]);
            const float logit = is_number ? row[e] : least;
            broken = broken || !is_number;
            const bool left = rank == 0 || logit < last || (logit == last && e > last_id);
            if (left && (best_id == args.experts || logit > best)) {
                best = logit;
                best_id = e;
            }
        }
        // Lanes that have nothing left do not count.
        const float most = simd_max(best_id < args.experts ? best : least);
        last_id = simd_min(best_id < args.experts && best == most ? best_id : args.experts);
        last = most;
        if (rank == 0) {
            largest = most;
        }
        const float weight = largest > least ? precise::exp(most - largest) : 1.0f;
        total += weight;
        if (lane == 0) {
            experts[group.y * args.top_k + rank] = last_id;
            weights[group.y * args.top_k + rank] = weight;
        }
    }
    if (simd_any(broken)) {
        total = as_type<float>(0x7fc00000u);
    }
    if (lane == 0) {
        for (uint rank = 0; rank < args.top_k; rank++) {
            weights[group.y * args.top_k + rank] /= total;
        }
    }
}
