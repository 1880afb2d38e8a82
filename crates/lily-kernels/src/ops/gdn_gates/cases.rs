//! Cases of `gdn_gates`.

use super::GdnGates;
use crate::check::{Case, CaseBuilder, LazyCase, STEPS, Step, TRUE_ROWS, at_shapes};
use crate::tensor::DType;

/// Ordinary values, and values at which exp overflows or a gate saturates.
pub fn cases() -> Vec<Case> {
    let shapes = [(1, 1.0), (3, 1.0), (32, 1.0), (16, 60.0)];
    STEPS.iter().flat_map(|step| shapes.map(|shape| case(*step, shape))).collect()
}

/// The model's shapes.
pub fn true_shapes() -> Vec<LazyCase> {
    at_shapes(TRUE_ROWS, &[(32, 1.0)], case)
}

fn case(step: Step, shape: (usize, f32)) -> Case {
    let (heads, scale) = shape;
    let mut b = CaseBuilder::new(step);
    let mut gate = || {
        let values = b.random.normals(b.rows() * heads, scale);
        b.input(b.bucket(), heads, &values)
    };
    let (a, c) = (gate(), gate());
    let values = b.random.normals(heads, 1.0);
    let a_log = b.constant(1, &values);
    let values = b.random.normals(heads, 1.0);
    let dt_bias = b.constant(1, &values);
    let decay = b.output(b.bucket(), heads, DType::F32);
    let beta = b.output(b.bucket(), heads, DType::F32);
    let op = GdnGates { a, b: c, a_log, dt_bias, decay, beta };
    b.finish(&format!("{heads} heads, ±{scale}"), op, 5e-6)
}
