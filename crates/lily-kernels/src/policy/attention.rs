//! The key/value cache: what writes it, what reads it.

use super::{Abilities, Grid, SIMD};
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

/// Heads that `attention_tile` is written for.
const TILE_DIMS: [(usize, &str); 3] =
    [(64, "attention_tile64"), (128, "attention_tile128"), (256, "attention_tile256")];
/// Its rows in a simdgroup, and its simdgroups.
const TILE_ROWS: usize = 8;
const TILE_SIMDGROUPS: usize = 8;

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

/// Query heads of a tile: as many of those that share a key/value head as it has simdgroups for.
pub fn tile_heads(o: &Attention) -> usize {
    let shared_by = o.q_heads() / o.layer.heads;
    (1..=TILE_SIMDGROUPS).rev().find(|heads| shared_by.is_multiple_of(*heads)).unwrap_or(1)
}

/// A chunk of one sequence by tiles of rows, each of which reads the cache once; `None` where that kernel does not fit.
fn tiles(o: &Attention, c: &Counts) -> Option<Grid> {
    let (_, kernel) = TILE_DIMS.iter().find(|(dim, _)| *dim == o.layer.head_dim)?;
    let (heads, fits) = (tile_heads(o), c.sequences == 1 && c.tokens >= TILE_ROWS);
    let row_groups = TILE_SIMDGROUPS / heads;
    let groups = [o.q_heads() / heads, c.tokens.div_ceil(row_groups * TILE_ROWS)];
    fits.then(|| Grid::new(kernel, groups, heads * row_groups * SIMD))
}

/// Tiles wherever they are legal: rows read the cache once each.
pub fn attention(o: &Attention, c: &Counts, switches: Switches, gpu: Abilities) -> Vec<Grid> {
    let groups = [o.q_heads() / shared_heads(o, switches), c.tokens];
    let rows = Grid::new("attention_rows", groups, SIMDGROUPS * SIMD);
    tiles(o, c).filter(|_| gpu.matrices).into_iter().chain([rows]).collect()
}

pub fn attention_parts(o: &AttentionParts, c: &Counts, switches: Switches) -> Grid {
    let heads = (o.attention.layer.head_dim, o.attention.q_heads() / o.attention.layer.heads);
    // Its lanes read neighbouring bytes, and cannot do otherwise.
    let coalesced = switches.is_on("kv-coalesced", DeviceKind::Metal);
    let blocks = c.tokens == 1 && c.longest >= o.cut.blocks_from && heads == BLOCK_HEADS && coalesced;
    let kernel = if blocks { "attention_blocks" } else { "attention_parts" };
    let packs = o.attention.q_heads() / shared_heads(&o.attention, switches);
    Grid::new(kernel, [packs, o.row_spans(c) * c.tokens], SIMDGROUPS * SIMD)
}

pub fn attention_merge(o: &AttentionMerge, c: &Counts) -> Grid {
    let pieces = o.of.attention.layer.head_dim.div_ceil(MERGED_ELEMENTS);
    Grid::new("attention_merge", [o.gate.heads * pieces, c.tokens], MERGED_ELEMENTS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::kv_write::KvLayer;
    use crate::tensor::{DType, Space, Tensor};

    /// Threadgroups that walk the cache of one key/value head, in a chunk of so many rows.
    fn walks(q_heads: usize, heads: usize, tokens: usize) -> usize {
        let layer = KvLayer { offset: 0, heads, head_dim: 256, dtype: DType::Bf16 };
        let q = Tensor { space: Space::Arena, offset: 0, rows: tokens, cols: q_heads * 256, dtype: DType::F32 };
        let counts = Counts { tokens, sequences: 1, ..Counts::default() };
        let grid = attention(&Attention { q, layer, out: q }, &counts, Switches::default(), Abilities::default())[0];
        grid.groups[0] * grid.groups[1] / heads
    }

    #[test]
    fn a_chunk_reads_the_cache_once_for_each_tile_of_rows() {
        for tokens in [8, 9, 64, 2047, 2048] {
            assert_eq!(walks(16, 2, tokens), tokens.div_ceil(8));
            assert_eq!(walks(8, 2, tokens), tokens.div_ceil(16));
            assert_eq!(walks(2, 2, tokens), tokens.div_ceil(64));
        }
        assert_eq!(walks(16, 2, 7), 7 * 2, "few rows one by one, four heads together");
    }
}
