//! Stages from declared byte ranges. Two dispatches conflict if one writes a byte that the other reads or writes
//! (read-after-write, write-after-read, write-after-write); the later then runs in a later stage.

use crate::op::{Access, Op};
use crate::tensor::Space;

/// Declared ranges of one dispatch.
struct Footprint {
    reads: Vec<Access>,
    writes: Vec<Access>,
}

impl Footprint {
    fn conflicts(&self, earlier: &Self) -> bool {
        let touch = |a: &[Access], b: &[Access]| a.iter().any(|x| b.iter().any(|y| x.overlaps(y)));
        touch(&self.reads, &earlier.writes)
            || touch(&self.writes, &earlier.reads)
            || touch(&self.writes, &earlier.writes)
    }
}

/// Stage of each op, in the order given.
pub fn stages<'a>(ops: impl Iterator<Item = &'a Op>) -> Vec<usize> {
    let mut seen: Vec<(Footprint, usize)> = Vec::new();
    for op in ops {
        let contract = op.contract();
        let mut foot = Footprint { reads: contract.reads(), writes: contract.writes() };
        // Nothing writes a weight, and a stack of experts may be hundreds of ranges.
        foot.reads.retain(|read| !matches!(read.space, Space::Weights(_)));
        // Scanning stages downwards could stop early; plans are recorded once, so the plain scan is kept.
        let stage = seen.iter().filter(|(e, _)| foot.conflicts(e)).map(|(_, s)| s + 1).max().unwrap_or(0);
        seen.push((foot, stage));
    }
    seen.into_iter().map(|(_, stage)| stage).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::add::Add;
    use crate::tensor::{DType, Space, Tensor};

    fn at(offset: usize) -> Tensor {
        Tensor { space: Space::Arena, offset, rows: 1, cols: 4, dtype: DType::F32 }
    }

    fn add(a: usize, b: usize, out: usize) -> Op {
        Add { a: at(a), b: at(b), out: at(out) }.into()
    }

    #[test]
    fn independent_ops_share_a_stage_and_each_hazard_opens_one() {
        let ops = [
            add(0, 16, 32),  // 0
            add(0, 16, 48),  // 0: only reads in common
            add(32, 48, 64), // 1: read after write
            add(80, 80, 16), // 1: write after the reads of the first two
            add(80, 80, 64), // 2: write after write, and after stage 1
            add(80, 80, 68), // 3: ranges overlap by bytes, not by equality
        ];
        assert_eq!(stages(ops.iter()), [0, 0, 1, 1, 2, 3]);
    }
}
