//! Cases of `gated_rms_norm`.

use super::GatedRmsNorm;
use crate::check::{Case, CaseBuilder, LazyCase, STEPS, Step, TRUE_ROWS, at_shapes};
use crate::tensor::DType;

/// One head and several.
pub fn cases() -> Vec<Case> {
    let shapes = [(1, 64), (3, 128), (5, 32)];
    STEPS.iter().flat_map(|step| shapes.map(|shape| case(*step, shape))).collect()
}

/// The model's shapes.
pub fn true_shapes() -> Vec<LazyCase> {
    at_shapes(TRUE_ROWS, &[(32, 128)], case)
}

fn case(step: Step, shape: (usize, usize)) -> Case {
    let (heads, dim) = shape;
    let mut b = CaseBuilder::new(step);
    let (y, z) = (b.normal(1, heads * dim), b.normal(1, heads * dim));
    let values = b.random.normals(dim, 1.0);
    let weight = b.constant(1, &values);
    let out = b.output(b.bucket(), heads * dim, DType::F32);
    b.finish(&format!("{heads} heads of {dim}"), GatedRmsNorm { y, z, weight, out, eps: 1e-6 }, 3e-6)
}
