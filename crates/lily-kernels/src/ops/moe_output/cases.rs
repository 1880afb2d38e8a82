//! Cases of `moe_output`.

use super::MoeOutput;
use crate::check::{Case, CaseBuilder, LazyCase, STEPS, Step, TRUE_ROWS, at_shapes};
use crate::ops::add::Add;
use crate::ops::combine_experts::CombineExperts;
use crate::ops::shared_expert_add::SharedExpertAdd;
use crate::tensor::DType;

/// Shapes of `combine_experts`.
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
    let combine = CombineExperts { x, weights, out: b.temp(b.bucket(), cols) };
    let (shared, gate) = (b.normal(1, cols), b.normal(1, 1));
    let shared = SharedExpertAdd { x: combine.out, shared, gate, out: b.temp(b.bucket(), cols) };
    let residual = b.normal(1, cols);
    let add = Add { a: residual, b: shared.out, out: b.output(b.bucket(), cols, DType::F32) };
    b.finish(&format!("{top_k} of {cols}"), MoeOutput { combine, shared, add }, 2e-6)
}
