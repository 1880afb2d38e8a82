// How a cache is cut into spans; after the prelude.

struct Cut {
    uint least;        // positions of a span, at least
    uint most;         // spans, at most
    uint blocks_from;  // length from which spans are whole blocks
    uint most_blocks;  // spans of whole blocks, at most
    uint block;        // positions
    uint capacity;     // spans that there is room for
};

inline uint span_of(constant Cut& cut, uint length) {
    if (length < cut.blocks_from) {
        return max(cut.least, (length + cut.most - 1) / cut.most);
    }
    const uint blocks = (length + cut.block - 1) / cut.block;
    return (blocks + cut.most_blocks - 1) / cut.most_blocks * cut.block;
}

inline uint span_count(constant Cut& cut, uint length) {
    const uint span = span_of(cut, length);
    return (length + span - 1) / span;
}
