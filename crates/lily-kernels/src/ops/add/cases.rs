//! Cases of `add`.

use super::Add;
use crate::check::{Case, CaseBuilder, LazyCase, STEPS, Step, TRUE_ROWS, at_shapes};
use crate::tensor::DType;

/// Odd and even widths.
pub fn cases() -> Vec<Case> {
    STEPS.iter().flat_map(|step| [1, 64, 67, 320].map(|cols| case(*step, cols))).collect()
}

/// The model's shapes.
pub fn true_shapes() -> Vec<LazyCase> {
    at_shapes(TRUE_ROWS, &[2048], case)
}

fn case(step: Step, cols: usize) -> Case {
    let mut b = CaseBuilder::new(step);
    let (a, c) = (b.normal(1, cols), b.normal(1, cols));
    let out = b.output(b.bucket(), cols, DType::F32);
    b.finish(&format!("of {cols}"), Add { a, b: c, out }, 0.0)
}
