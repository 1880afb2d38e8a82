// The next token of each row, in two launches. `sample_blocks`: edits, and of each block the likeliest token; many
// threadgroups a row. `sample_choose`: filters and the draw; one threadgroup a row, which leaves out blocks that hold
// nothing of what it looks for. Each filter keeps the first tokens by descending logit, so it is known by the last one that
// it keeps, and that one is found by bisection: counts and sums of what comes before.
// Weights are summed as integers of 2^-44: their sum is the same in any order, and nothing but exp rounds.

// Logits of a block, which a simdgroup looks at; and of a threadgroup's four blocks.
constant constexpr uint BLOCK = 256;
constant constexpr uint TILE = 1024;

// Stands for no token, as on the host.
constant constexpr uint NO_TOKEN = 0xffffffffu;
// Comes after every token.
constant constexpr ulong NOTHING = 0xfffffffffffffffful;
// Weight 1.
constant constexpr float ONE = 17592186044416.0f;

// How the token of a row is chosen.
struct SampleRow {
    float temperature;
    uint top_k;
    float top_p;
    float min_p;
    uint draw;  // a uniform number in [0, 1), in units of 2^-32
    uint limit;
    uint first_edit;
    uint edits;
    uint mask;  // its number, or NO_MASK
};

constant constexpr uint NO_MASK = 0xffffffffu;

struct SampleEdit {
    uint id;
    float bias;
    float repetition;
    float penalty;
};

// The likeliest token of a block; −∞ if it has none.
struct SampleBlock {
    float logit;
    uint id;
    uint broken;  // the row has NaN or +∞, seen by this block's simdgroup
};

struct SampleArguments {
    uint cols;
    uint blocks;
};

kernel void sample_blocks(
    device const float* logits [[buffer(0)]],
    device const SampleRow* rows [[buffer(1)]],
    device const SampleEdit* edits [[buffer(2)]],
    device const uint* masks [[buffer(3)]],
    device float* edited [[buffer(4)]],
    device SampleBlock* blocks [[buffer(5)]],
    constant SampleArguments& args [[buffer(6)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]])
{
    threadgroup float tile[TILE];
    device const SampleRow* how = rows + group.y;
    const float most = numeric_limits<float>::infinity();
    const uint limit = min(how->limit, args.cols);
    const uint first = group.x * TILE;
    bool broken = false;
    for (uint i = tid; i < TILE; i += threads) {
        float logit = -most;
        if (first + i < limit) {
            logit = logits[group.y * args.cols + first + i];
            broken = broken || !(logit < most);
        }
        tile[i] = logit;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint e = tid; e < how->edits; e += threads) {
        device const SampleEdit* edit = edits + how->first_edit + e;
        // An id before the tile wraps to one far behind it.
        const uint i = edit->id - first;
        if (i < TILE && edit->id < limit) {
            const float logit = tile[i] + edit->bias;
            tile[i] = (logit > 0.0f ? logit / edit->repetition : logit * edit->repetition) - edit->penalty;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float best = -most;
    uint best_id = NO_TOKEN;
    const bool is_masked = how->mask != NO_MASK;
    // A simdgroup's 32 logits are those of one word.
    device const uint* words = masks + (is_masked ? how->mask * ((args.cols + 31) / 32) : 0);
    for (uint i = simdgroup * BLOCK + lane; i < (simdgroup + 1) * BLOCK; i += 32) {
        float logit = tile[i];
        if (is_masked && first + i < limit && (words[(first + i) / 32] >> lane & 1) == 0) {
            logit = -most;
        }
        if (logit > best) {
            best = logit;
            best_id = first + i;
        }
        // Arg max needs no row.
        if (how->temperature != 0.0f && first + i < args.cols) {
            edited[group.y * args.cols + first + i] = logit;
        }
    }
    const float largest = simd_max(best);
    const uint id = simd_min(best == largest ? best_id : NO_TOKEN);
    const uint is_broken = simd_any(broken) ? 1 : 0;
    const uint block = first / BLOCK + simdgroup;
    if (lane == 0 && block < args.blocks) {
        blocks[group.y * args.blocks + block].logit = largest;
        blocks[group.y * args.blocks + block].id = id;
        blocks[group.y * args.blocks + block].broken = is_broken;
    }
}

// Integers that descend with the logit.
inline uint key_of(float logit) {
    const uint bits = as_type<uint>(logit + 0.0f);  // −0 is 0
    return (bits >> 31) == 0 ? 0x7fffffffu - bits : bits;
}

inline float logit_of(uint key) {
    return as_type<float>((key >> 31) == 0 ? 0x7fffffffu - key : key);
}

// A token's place in the order: likelier is smaller, and of equals the lower id is. What may not be chosen comes last.
inline ulong place_of(float logit, uint id) {
    return logit > -numeric_limits<float>::infinity() ? (static_cast<ulong>(key_of(logit)) << 32) | id : NOTHING;
}

// The last place of a key.
inline ulong end_of(uint key) {
    return (static_cast<ulong>(key) << 32) | 0xffffffffu;
}

// Simd operations have 32 bits; sums of 22 fit.
inline ulong simd_total(ulong x) {
    const ulong low = simd_sum(static_cast<uint>(x & 0x3fffffu));
    const ulong middle = simd_sum(static_cast<uint>((x >> 22) & 0x3fffffu));
    const ulong high = simd_sum(static_cast<uint>(x >> 44));
    return low + (middle << 22) + (high << 44);
}

inline ulong simd_through(ulong x) {
    const ulong low = simd_prefix_inclusive_sum(static_cast<uint>(x & 0x3fffffu));
    const ulong middle = simd_prefix_inclusive_sum(static_cast<uint>((x >> 22) & 0x3fffffu));
    const ulong high = simd_prefix_inclusive_sum(static_cast<uint>(x >> 44));
    return low + (middle << 22) + (high << 44);
}

// The same for all threads.
inline ulong total_of(ulong mine, threadgroup ulong* parts, uint lane, uint simdgroup, uint simdgroups) {
    const ulong sum = simd_total(mine);
    if (lane == 0) {
        parts[simdgroup] = sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    ulong total = 0;
    for (uint i = 0; i < simdgroups; i++) {
        total += parts[i];
    }
    // The next sum overwrites the parts.
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return total;
}

inline ulong least_of(ulong mine, threadgroup ulong* parts, uint lane, uint simdgroup, uint simdgroups) {
    const uint high = simd_min(static_cast<uint>(mine >> 32));
    const uint low = simd_min(static_cast<uint>(mine >> 32) == high ? static_cast<uint>(mine & 0xffffffffu) : NO_TOKEN);
    if (lane == 0) {
        parts[simdgroup] = (static_cast<ulong>(high) << 32) | low;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    ulong least = NOTHING;
    for (uint i = 0; i < simdgroups; i++) {
        least = min(least, parts[i]);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return least;
}

// What of a row is measured: tokens up to a place, by number or by weight.
struct SampleMeasure {
    ulong end;
    bool weighed;
    float largest;
    float temperature;
    float min_p;
};

inline ulong share_of(float logit, uint id, thread const SampleMeasure& m) {
    if (place_of(logit, id) > m.end) {
        return 0;
    }
    if (!m.weighed) {
        return 1;
    }
    // ∞ − ∞ is no number; an infinite logit is as likely as can be.
    const float weight = logit == m.largest ? 1.0f : precise::exp((logit - m.largest) / m.temperature);
    return weight >= m.min_p ? static_cast<ulong>(weight * ONE) : 0;
}

// A lane's part of a block.
inline ulong share_of_block(
    device const float* row,
    device const SampleBlock* blocks,
    uint block,
    uint limit,
    thread const SampleMeasure& m,
    uint lane)
{
    // What comes before the block's first token is not in it.
    if (place_of(blocks[block].logit, blocks[block].id) > m.end) {
        return 0;
    }
    ulong sum = 0;
    const uint end = min((block + 1) * BLOCK, limit);
    for (uint id = block * BLOCK + lane; id < end; id += 32) {
        sum += share_of(row[id], id, m);
    }
    return sum;
}

struct SampleThread {
    uint lane;
    uint simdgroup;
    uint simdgroups;
};

inline ulong share_of_row(
    device const float* row,
    device const SampleBlock* blocks,
    uint limit,
    thread const SampleMeasure& m,
    threadgroup ulong* parts,
    thread const SampleThread& t)
{
    ulong sum = 0;
    for (uint block = t.simdgroup; block * BLOCK < limit; block += t.simdgroups) {
        sum += share_of_block(row, blocks, block, limit, m, t.lane);
    }
    return total_of(sum, parts, t.lane, t.simdgroup, t.simdgroups);
}

// Moves the measure's end to the first place up to which it reaches `need`, if that comes before.
inline void end_where(
    device const float* row,
    device const SampleBlock* blocks,
    uint limit,
    ulong need,
    thread SampleMeasure& m,
    threadgroup ulong* parts,
    thread const SampleThread& t)
{
    const ulong end = m.end;
    uint low = key_of(m.largest);
    uint high = static_cast<uint>(end >> 32);
    // Steps that double come near it while most blocks are left out.
    float by = m.weighed ? m.temperature : 1.0f;
    for (uint i = 0; i < 12; i++) {
        const uint key = key_of(m.largest - by);
        if (key < low || key >= high) {
            break;
        }
        m.end = min(end_of(key), end);
        if (share_of_row(row, blocks, limit, m, parts, t) >= need) {
            high = key;
            break;
        }
        low = key + 1;
        by *= 2.0f;
    }
    while (low < high) {
        const uint key = low + (high - low) / 2;
        m.end = min(end_of(key), end);
        const ulong sum = share_of_row(row, blocks, limit, m, parts, t);
        if (sum == need && !m.weighed) {
            return;
        }
        if (sum >= need) {
            high = key;
        } else {
            low = key + 1;
        }
    }
    // Among equal logits ids decide; one alone is all of them.
    m.end = end_of(low - 1);
    const ulong before = share_of_row(row, blocks, limit, m, parts, t);
    m.end = min(end_of(low), end);
    const ulong through = share_of_row(row, blocks, limit, m, parts, t);
    if (through - before <= share_of(logit_of(low), 0, m)) {
        return;
    }
    uint id = 0;
    uint last = limit - 1;
    while (id < last) {
        const uint middle = id + (last - id) / 2;
        m.end = min((static_cast<ulong>(low) << 32) | middle, end);
        if (share_of_row(row, blocks, limit, m, parts, t) >= need) {
            last = middle;
        } else {
            id = middle + 1;
        }
    }
    m.end = min((static_cast<ulong>(low) << 32) | id, end);
}

// x · part / 2^32, rounded up by less than `up` / 2^32; x is below 2^62.
inline ulong part_of(ulong x, uint part, uint up) {
    return (x >> 32) * part + (((x & 0xffffffffu) * part + up) >> 32);
}

// The lane with which the running sum passes the target, or 32; `before` becomes the sum before it, or of all.
inline uint passing(ulong mine, ulong target, thread ulong* before, uint lane) {
    const ulong through = *before + simd_through(mine);
    const uint found = simd_min(through > target ? lane : 32u);
    const ulong sum = found < 32 ? through - mine : through;
    const ushort from = static_cast<ushort>(min(found, 31u));
    const ulong high = simd_shuffle(static_cast<uint>(sum >> 32), from);
    *before = (high << 32) | simd_shuffle(static_cast<uint>(sum & 0xffffffffu), from);
    return found;
}

// Top-k, top-p and min-p, one after the other: where the measure of what is left ends.
inline void keep_likeliest(
    device const float* row,
    device const SampleRow* how,
    device const SampleBlock* blocks,
    uint limit,
    thread SampleMeasure& m,
    threadgroup ulong* parts,
    thread const SampleThread& t)
{
    m.min_p = 0.0f;
    if (how->top_k > 0 && how->top_k < limit) {
        m.weighed = false;
        end_where(row, blocks, limit, how->top_k, m, parts, t);
    }
    m.weighed = true;
    if (how->top_p < 1.0f) {
        const ulong total = share_of_row(row, blocks, limit, m, parts, t);
        const ulong enough = part_of(total, static_cast<uint>(how->top_p * 4294967296.0f), 0xffffffffu);
        end_where(row, blocks, limit, enough, m, parts, t);
    }
    m.min_p = how->min_p;
}

// The token at which the running sum passes the target: its block by the sums of the blocks, then its place there.
inline uint drawn(
    device const float* row,
    device const ulong* sums,
    uint blocks,
    uint limit,
    ulong target,
    thread const SampleMeasure& m,
    uint lane)
{
    ulong before = 0;
    uint found = 32;
    uint first = 0;
    while (found == 32 && first < blocks) {
        found = passing(first + lane < blocks ? sums[first + lane] : 0, target, &before, lane);
        first += 32;
    }
    uint id = (first - 32 + found) * BLOCK;
    found = 32;
    while (found == 32 && id < limit) {
        found = passing(id + lane < limit ? share_of(row[id + lane], id + lane, m) : 0, target, &before, lane);
        id += 32;
    }
    return id - 32 + found;
}

kernel void sample_choose(
    device const float* edited [[buffer(0)]],
    device const SampleRow* rows [[buffer(1)]],
    device const SampleBlock* all_blocks [[buffer(2)]],
    device ulong* all_sums [[buffer(3)]],
    device uint* tokens [[buffer(4)]],
    device uint* for_host [[buffer(5)]],
    constant SampleArguments& args [[buffer(6)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]])
{
    threadgroup ulong parts[32];
    device const float* row = edited + group.y * args.cols;
    device const SampleRow* how = rows + group.y;
    device const SampleBlock* blocks = all_blocks + group.y * args.blocks;
    device ulong* sums = all_sums + group.y * args.blocks;
    const uint limit = min(how->limit, args.cols);
    SampleThread t;
    t.lane = lane;
    t.simdgroup = simdgroup;
    t.simdgroups = simdgroups;

    ulong mine = NOTHING;
    ulong broken = 0;
    for (uint block = tid; block < args.blocks; block += threads) {
        mine = min(mine, place_of(blocks[block].logit, blocks[block].id));
        broken += blocks[block].broken;
    }
    const ulong likeliest = least_of(mine, parts, lane, simdgroup, simdgroups);
    const bool is_broken = total_of(broken, parts, lane, simdgroup, simdgroups) > 0;
    if (is_broken || likeliest == NOTHING || how->temperature == 0.0f) {
        if (tid == 0) {
            // The low half of NOTHING is NO_TOKEN.
            const uint id = is_broken ? NO_TOKEN : static_cast<uint>(likeliest & 0xffffffffu);
            tokens[group.y] = id;
            for_host[group.y] = id;
        }
        return;
    }

    SampleMeasure m;
    m.end = NOTHING - 1;
    m.largest = logit_of(static_cast<uint>(likeliest >> 32));
    m.temperature = how->temperature;
    keep_likeliest(row, how, blocks, limit, m, parts, t);

    // The draw goes over what is left in the order of ids: to its block, then to its place there.
    ulong sum = 0;
    for (uint block = simdgroup; block < args.blocks; block += simdgroups) {
        const ulong of_block = simd_total(block * BLOCK < limit ? share_of_block(row, blocks, block, limit, m, lane) : 0);
        if (lane == 0) {
            sums[block] = of_block;
            sum += of_block;
        }
    }
    const ulong target = part_of(total_of(sum, parts, lane, simdgroup, simdgroups), how->draw, 0);
    threadgroup_barrier(mem_flags::mem_device);
    if (simdgroup > 0) {
        return;
    }
    const uint id = drawn(row, sums, args.blocks, limit, target, m, lane);
    if (lane == 0) {
        tokens[group.y] = id;
        for_host[group.y] = id;
    }
}
