//! The next token: two launches, the second one after the first.

use super::sources::SAMPLE;
use super::{Arguments, Prepared};
use crate::metal::device::SIMD;
use crate::metal::step::Step;
use crate::ops::sample::Sample;

/// Logits of a block and of a threadgroup (`BLOCK` and `TILE` in `sample.metal`).
const BLOCK: usize = 256;
const TILE: usize = 1024;
/// Simdgroups that choose, at most.
const SIMDGROUPS: usize = 16;

/// Where the parts of the scratch memory begin, and its length.
pub struct Scratch {
    /// `SampleBlock`s.
    pub blocks: usize,
    /// Their sums.
    pub sums: usize,
    /// Edited logits.
    pub edited: usize,
    /// Bytes in all.
    pub bytes: usize,
}

const fn blocks_of(o: &Sample) -> usize {
    o.logits.cols.div_ceil(BLOCK)
}

impl Scratch {
    /// For so many rows of an op.
    pub const fn of(o: &Sample) -> Self {
        const BLOCK_BYTES: usize = 12;
        let (rows, blocks) = (o.logits.rows, blocks_of(o));
        let sums = (rows * blocks * BLOCK_BYTES).next_multiple_of(16);
        let edited = sums + (rows * blocks * 8).next_multiple_of(16);
        Self { blocks: 0, sums, edited, bytes: edited + rows * o.logits.cols * 4 }
    }
}

pub fn sample<'a>(step: &Step<'a>, o: &Sample) -> Vec<Prepared<'a>> {
    let (cols, rows) = (o.logits.cols, step.inputs.sampling.len());
    let scratch = Scratch::of(o);
    let [blocks, sums, edited] = [scratch.blocks, scratch.sums, scratch.edited].map(|offset| step.scratch(offset));
    let arguments = || Arguments::of(&[cols, blocks_of(o)]);
    let look = vec![step.at(&o.logits), step.sampling(), step.edits(), edited, blocks];
    let choose = vec![edited, step.sampling(), blocks, sums, step.at(&o.tokens), step.for_host()];
    vec![
        Prepared::new(SAMPLE, "sample_blocks", look)
            .arguments(arguments())
            .over([cols.div_ceil(TILE), rows], TILE / BLOCK * SIMD),
        Prepared::new(SAMPLE, "sample_choose", choose)
            .arguments(arguments())
            .over([1, rows], blocks_of(o).clamp(1, SIMDGROUPS) * SIMD)
            .after(0),
    ]
}
