//! Cases of `shared_expert_add`.

use super::SharedExpertAdd;
use crate::check::{Case, CaseBuilder, LazyCase, STEPS, Step, TRUE_ROWS, at_shapes};
use crate::tensor::DType;

/// Odd and even widths.
pub fn cases() -> Vec<Case> {
    STEPS.iter().flat_map(|step| [64, 67, 320].map(|cols| case(*step, cols))).collect()
}

/// The model's shapes.
pub fn true_shapes() -> Vec<LazyCase> {
    at_shapes(TRUE_ROWS, &[2048], case)
}

fn case(step: Step, cols: usize) -> Case {
    let mut b = CaseBuilder::new(step);
    let (x, shared, gate) = (b.normal(1, cols), b.normal(1, cols), b.normal(1, 1));
    let out = b.output(b.bucket(), cols, DType::F32);
    b.finish(&format!("of {cols}"), SharedExpertAdd { x, shared, gate, out }, 1e-6)
}
