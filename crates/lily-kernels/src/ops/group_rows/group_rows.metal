// Sorts the pairs of a step by expert, stably: counts, prefix sum, scatter, in one threadgroup. A thread owns whole experts
// and looks at the pairs in their order, so no order has to be restored. All threads read the same pair at a time.

struct GroupRowsArguments {
    uint pairs;
    uint experts;
};

kernel void group_rows(
    device const uint* experts [[buffer(0)]],
    device uint* offsets [[buffer(1)]],
    device uint* order [[buffer(2)]],
    constant GroupRowsArguments& args [[buffer(3)]],
    uint tid [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]])
{
    threadgroup uint totals[32];
    uint before = 0;  // pairs of the experts of earlier rounds
    for (uint first = 0; first < args.experts; first += threads) {
        const uint expert = first + tid;
        uint count = 0;
        for (uint pair = 0; pair < args.pairs; pair++) {
            count += experts[pair] == expert ? 1 : 0;
        }
        const uint below = simd_prefix_exclusive_sum(count);
        if (lane == 31) {
            totals[simdgroup] = below + count;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        uint at = before + below;
        for (uint i = 0; i < simdgroups; i++) {
            before += totals[i];
            at += i < simdgroup ? totals[i] : 0;
        }
        // The next round writes the totals that this one reads.
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (expert < args.experts) {
            offsets[expert] = at;
        }
        for (uint pair = 0; pair < args.pairs; pair++) {
            if (experts[pair] == expert) {
                order[at] = pair;
                at++;
            }
        }
    }
    if (tid == 0) {
        offsets[args.experts] = args.pairs;
    }
}
