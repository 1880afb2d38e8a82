// Which pairs a threadgroup of a grouped matmul takes; after `experts.metal`.

// Up to TILE neighbours in the order of one expert; none if the grid has more threadgroups than there are blocks.
struct Block {
    uint expert;
    uint first;
    uint pairs;
};

// Block `number` of all, found in each simdgroup by itself: a prefix sum over the experts' blocks, 32 experts at a time.
template <uint TILE>
inline Block block_of(device const uint* offsets, uint experts, uint number, uint lane) {
    Block block = {0, 0, 0};
    uint before = 0;  // blocks of earlier experts
    for (uint first = 0; first < experts && before <= number; first += 32) {
        const uint expert = first + lane;
        const uint start = expert < experts ? offsets[expert] : 0;
        const uint pairs = expert < experts ? offsets[expert + 1] - start : 0;
        const uint blocks = (pairs + TILE - 1) / TILE;
        const uint below = before + simd_prefix_exclusive_sum(blocks);
        const bool is_here = below <= number && number < below + blocks;
        const uint skipped = is_here ? (number - below) * TILE : 0;
        // At most one lane adds anything.
        block.expert += simd_sum(is_here ? expert : 0u);
        block.first += simd_sum(is_here ? start + skipped : 0u);
        block.pairs += simd_sum(is_here ? min(pairs - skipped, TILE) : 0u);
        before += simd_sum(blocks);
    }
    return block;
}
