//! The key/value cache: what writes it, what reads it.

use super::{Grid, SIMD};
use crate::devices::DeviceKind;
use crate::op::Counts;
use crate::ops::attention::Attention;
use crate::ops::attention_merge::AttentionMerge;
use crate::ops::attention_parts::AttentionParts;
use crate::ops::qk_norm_rope_write::QkNormRopeWrite;
use crate::switches::Switches;

/// Query heads of a threadgroup, at most.
const SHARED_HEADS: usize = 4;
/// Simdgroups of an attention threadgroup.
const SIMDGROUPS: usize = 4;

/// Elements of a head that a threadgroup merges.
pub const MERGED_ELEMENTS: usize = 64;
/// Heads that `attention_blocks` is written for: elements, and query heads of a key/value head.
const BLOCK_HEADS: (usize, usize) = (256, 8);

/// Query heads that read the same keys together: as many as divide them.
pub fn shared_heads(o: &Attention, switches: Switches) -> usize {
    if !switches.is_on("gqa-pack", DeviceKind::Metal) {
        return 1;
    }
    let shared_by = o.q_heads() / o.layer.heads;
    (1..=SHARED_HEADS).rev().find(|heads| shared_by.is_multiple_of(*heads)).unwrap_or(1)
}

pub fn qk_norm_rope_write(o: &QkNormRopeWrite, c: &Counts) -> Grid {
    Grid::new("qk_norm_rope_write", [o.q_norm.heads + o.k_norm.heads, c.tokens], SIMD)
}

pub fn attention(o: &Attention, c: &Counts, switches: Switches) -> Grid {
    Grid::new("attention_rows", [o.q_heads() / shared_heads(o, switches), c.tokens], SIMDGROUPS * SIMD)
}

pub fn attention_parts(o: &AttentionParts, c: &Counts, switches: Switches) -> Grid {
    let heads = (o.attention.layer.head_dim, o.attention.q_heads() / o.attention.layer.heads);
    let blocks = c.tokens == 1 && c.longest >= o.cut.blocks_from && heads == BLOCK_HEADS;
    let kernel = if blocks { "attention_blocks" } else { "attention_parts" };
    let packs = o.attention.q_heads() / shared_heads(&o.attention, switches);
    Grid::new(kernel, [packs, o.row_spans(c) * c.tokens], SIMDGROUPS * SIMD)
}

pub fn attention_merge(o: &AttentionMerge, c: &Counts) -> Grid {
    let pieces = o.of.attention.layer.head_dim.div_ceil(MERGED_ELEMENTS);
    Grid::new("attention_merge", [o.gate.heads * pieces, c.tokens], MERGED_ELEMENTS)
}
