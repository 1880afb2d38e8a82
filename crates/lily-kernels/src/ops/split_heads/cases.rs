//! Cases of `split_heads`.

use super::{Parts, SplitHeads};
use crate::check::{Case, CaseBuilder, LazyCase, STEPS, Step, TRUE_ROWS, at_shapes};
use crate::tensor::DType;

/// All parts of a head, the first ones, the last one; parts of odd widths and of one element.
pub fn cases() -> Vec<Case> {
    let parts = |start, widths| Parts { start, widths };
    let shapes = [
        (2, 48, parts(0, [8, 8, 16])),
        (2, 48, parts(32, [16, 0, 0])),
        (16, 4, parts(0, [2, 0, 0])),
        (16, 4, parts(2, [2, 0, 0])),
        (1, 13, parts(0, [3, 7, 3])),
        (5, 3, parts(1, [1, 1, 0])),
    ];
    STEPS.iter().flat_map(|step| shapes.map(|(heads, stride, parts)| case(*step, heads, stride, parts))).collect()
}

/// The shapes of Qwen3-Next, whose projections are interleaved by heads.
pub fn true_shapes() -> Vec<LazyCase> {
    let parts = |start, widths| Parts { start, widths };
    let shapes = [
        (16, 768, parts(0, [128, 128, 256])),
        (16, 768, parts(512, [256, 0, 0])),
        (16, 4, parts(0, [2, 0, 0])),
        (16, 4, parts(2, [2, 0, 0])),
    ];
    at_shapes(TRUE_ROWS, &shapes, |step, (heads, stride, parts)| case(step, heads, stride, parts))
}

fn case(step: Step, heads: usize, stride: usize, parts: Parts) -> Case {
    let mut b = CaseBuilder::new(step);
    let x = b.normal(1, heads * stride);
    let out = b.output(b.bucket(), heads * parts.widths.iter().sum::<usize>(), DType::F32);
    b.finish(&format!("{parts:?} of {heads} heads of {stride}"), SplitHeads { x, out, heads, parts }, 0.0)
}
