//! Cases of `combine_experts`.

use super::CombineExperts;
use crate::check::{Case, CaseBuilder, LazyCase, STEPS, Step, TRUE_ROWS, at_shapes};
use crate::tensor::DType;

/// One expert, two, eight.
pub fn cases() -> Vec<Case> {
    let shapes = [(1, 67), (2, 64), (8, 320)];
    STEPS.iter().flat_map(|step| shapes.map(|shape| case(*step, shape))).collect()
}

/// The model's shapes.
pub fn true_shapes() -> Vec<LazyCase> {
    at_shapes(TRUE_ROWS, &[(8, 2048)], case)
}

fn case(step: Step, shape: (usize, usize)) -> Case {
    let (top_k, cols) = shape;
    let mut b = CaseBuilder::new(step);
    let (x, weights) = (b.normal(top_k, cols), b.normal(1, top_k));
    let out = b.output(b.bucket(), cols, DType::F32);
    b.finish(&format!("{top_k} of {cols}"), CombineExperts { x, weights, out }, 2e-6)
}
