//! Cases of `expand_weights`.

use super::ExpandWeights;
use crate::check::{Case, CaseBuilder, LazyCase, STEPS, Step, at_shapes};
use crate::ops::linear::cases::FORMATS;
use crate::tensor::{DType, Format};

/// A value between two bf16 numbers may go to either.
const TOLERANCE: f64 = 2e-2;

/// Every format, one matrix and several, at any byte and at whole words.
pub fn cases() -> Vec<Case> {
    let affine = FORMATS.iter().filter(|format| matches!(format, Format::Affine { .. }));
    let shapes = [(1, 3, 128, false), (3, 5, 384, true)];
    affine.flat_map(|format| shapes.map(|shape| case(STEPS[1], (*format, shape)))).collect()
}

/// The model's largest projection, and some of its experts.
pub fn true_shapes() -> Vec<LazyCase> {
    let shapes = [(1, 8192, 2048, true), (16, 512, 2048, true), (16, 2048, 512, false)];
    at_shapes(&STEPS[1..2], &shapes.map(|shape| (FORMATS[0], shape)), case)
}

fn case(step: Step, (format, shape): (Format, (usize, usize, usize, bool))) -> Case {
    let (experts, rows, cols, aligned) = shape;
    let mut b = CaseBuilder::new(step);
    if aligned {
        b.align_weights();
    }
    let weight = b.matrix(experts, rows, cols, format);
    let out = b.output(experts * rows, cols, DType::Bf16);
    b.finish(&format!("{experts} of {rows}×{cols}, {format:?}"), ExpandWeights { weight, out }, TOLERANCE)
}
