//! Cases of `combine_experts`.

use super::CombineExperts;
use crate::check::{Case, CaseBuilder, STEPS, Step};
use crate::tensor::DType;

/// One expert, two, eight.
pub fn cases() -> Vec<Case> {
    let shapes = [(1, 67), (2, 64), (8, 320)];
    STEPS.iter().flat_map(|step| shapes.map(|shape| case(*step, shape))).collect()
}

fn case(step: Step, shape: (usize, usize)) -> Case {
    let (top_k, cols) = shape;
    let mut b = CaseBuilder::new(step);
    let (x, weights) = (b.normal(top_k, cols), b.normal(1, top_k));
    let out = b.output(b.bucket(), cols, DType::F32);
    b.finish(&format!("{top_k} of {cols}"), CombineExperts { x, weights, out }, 1e-6)
}
