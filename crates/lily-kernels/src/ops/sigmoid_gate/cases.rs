//! Cases of `sigmoid_gate`.

use super::SigmoidGate;
use crate::check::{Case, CaseBuilder, LazyCase, STEPS, Step, TRUE_ROWS, at_shapes};
use crate::tensor::DType;

/// Gates behind queries, and gates alone.
pub fn cases() -> Vec<Case> {
    let shapes = [(1, 64, 64), (3, 64, 128), (2, 256, 512), (2, 128, 256)];
    STEPS.iter().flat_map(|step| shapes.map(|shape| case(*step, shape))).collect()
}

/// The model's shapes.
pub fn true_shapes() -> Vec<LazyCase> {
    at_shapes(TRUE_ROWS, &[(16, 256, 512)], case)
}

fn case(step: Step, shape: (usize, usize, usize)) -> Case {
    let (heads, dim, stride) = shape;
    let mut b = CaseBuilder::new(step);
    let (x, gate) = (b.normal(1, heads * dim), b.normal(1, heads * stride));
    let out = b.output(b.bucket(), heads * dim, DType::F32);
    let op = SigmoidGate { x, gate, out, heads, stride, start: stride - dim };
    b.finish(&format!("{heads} heads of {dim} every {stride}"), op, 1e-6)
}
