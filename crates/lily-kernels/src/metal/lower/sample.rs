//! The next token: two launches, the second one after the first.

use super::sources::SAMPLE;
use super::{Arguments, Prepared};
use crate::metal::step::Step;
use crate::ops::sample::Sample;
use crate::policy::{self, Grid, block_count};

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

impl Scratch {
    /// For so many rows of an op.
    pub const fn of(o: &Sample) -> Self {
        const BLOCK_BYTES: usize = 12;
        let (rows, blocks) = (o.logits.rows, block_count(o));
        let sums = (rows * blocks * BLOCK_BYTES).next_multiple_of(16);
        let edited = sums + (rows * blocks * 8).next_multiple_of(16);
        Self { blocks: 0, sums, edited, bytes: edited + rows * o.logits.cols * 4 }
    }
}

pub fn sample<'a>(step: &Step<'a>, grid: Grid, o: &Sample) -> Vec<Prepared<'a>> {
    let scratch = Scratch::of(o);
    let [blocks, sums, edited] = [scratch.blocks, scratch.sums, scratch.edited].map(|offset| step.scratch(offset));
    let arguments = || Arguments::of(&[o.logits.cols, block_count(o)]);
    let look = vec![step.at(&o.logits), step.sampling(), step.edits(), step.masks(), edited, blocks];
    let choose = vec![edited, step.sampling(), blocks, sums, step.at(&o.tokens), step.for_host()];
    vec![
        Prepared::new(SAMPLE, grid, look).arguments(arguments()),
        Prepared::new(SAMPLE, policy::choose(o, &step.counts), choose).arguments(arguments()).after(0),
    ]
}
