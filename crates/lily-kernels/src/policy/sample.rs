//! The next token: one kernel over blocks of logits, and one that chooses.

use super::{Grid, SIMD};
use crate::op::Counts;
use crate::ops::sample::Sample;

/// Logits of a block and of a threadgroup (`BLOCK` and `TILE` in `sample.metal`).
const BLOCK: usize = 256;
const TILE: usize = 1024;
/// Simdgroups that choose, at most.
const SIMDGROUPS: usize = 16;

/// Blocks of a row.
pub const fn block_count(o: &Sample) -> usize {
    o.logits.cols.div_ceil(BLOCK)
}

pub fn blocks(o: &Sample, c: &Counts) -> Grid {
    Grid::new("sample_blocks", [o.logits.cols.div_ceil(TILE), c.outputs], TILE / BLOCK * SIMD)
}

/// What follows it.
pub fn choose(o: &Sample, c: &Counts) -> Grid {
    Grid::new("sample_choose", [1, c.outputs], block_count(o).clamp(1, SIMDGROUPS) * SIMD)
}
