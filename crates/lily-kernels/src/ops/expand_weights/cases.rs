//! Cases of `expand_weights`.

use super::ExpandWeights;
use crate::check::{Case, CaseBuilder, STEPS};
use crate::ops::linear::cases::FORMATS;
use crate::tensor::{DType, Format};

/// A value between two bf16 numbers may go to either.
const TOLERANCE: f64 = 2e-2;

/// Every format, one matrix and several, at any byte and at whole words.
pub fn cases() -> Vec<Case> {
    let affine = FORMATS.iter().filter(|format| matches!(format, Format::Affine { .. }));
    affine.flat_map(|format| [(1, 3, 128, false), (3, 5, 384, true)].map(|shape| case(*format, shape))).collect()
}

fn case(format: Format, (experts, rows, cols, aligned): (usize, usize, usize, bool)) -> Case {
    let mut b = CaseBuilder::new(STEPS[1]);
    if aligned {
        b.align_weights();
    }
    let weight = b.matrix(experts, rows, cols, format);
    let out = b.output(experts * rows, cols, DType::Bf16);
    b.finish(&format!("{experts} of {rows}×{cols}, {format:?}"), ExpandWeights { weight, out }, TOLERANCE)
}
