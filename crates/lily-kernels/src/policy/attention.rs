//! The key/value cache: what writes it, what reads it.

use super::{Grid, SIMD};
use crate::op::Counts;
use crate::ops::attention::Attention;
use crate::ops::qk_norm_rope_write::QkNormRopeWrite;

/// Query heads of a threadgroup, at most.
pub const SHARED_HEADS: usize = 4;
/// Simdgroups of an attention threadgroup.
const SIMDGROUPS: usize = 4;

/// Query heads that read the same keys together: as many as divide them.
pub fn shared_heads(o: &Attention) -> usize {
    let shared_by = o.q_heads() / o.layer.heads;
    (1..=SHARED_HEADS).rev().find(|heads| shared_by.is_multiple_of(*heads)).unwrap_or(1)
}

pub fn qk_norm_rope_write(o: &QkNormRopeWrite, c: &Counts) -> Grid {
    Grid::new("qk_norm_rope_write", [o.q_norm.heads + o.k_norm.heads, c.tokens], SIMD)
}

pub fn attention(o: &Attention, c: &Counts) -> Grid {
    Grid::new("attention_rows", [o.q_heads() / shared_heads(o), c.tokens], SIMDGROUPS * SIMD)
}
