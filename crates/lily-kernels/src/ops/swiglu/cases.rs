//! Cases of `swiglu`.

use super::SwiGlu;
use crate::check::{Case, CaseBuilder, LazyCase, STEPS, Step, TRUE_ROWS, at_shapes};
use crate::tensor::DType;

/// One row a token and several; ordinary gates, and gates at which exp overflows.
pub fn cases() -> Vec<Case> {
    let shapes = [(1, 67, 1.0), (2, 64, 1.0), (8, 320, 1.0), (1, 64, 80.0)];
    STEPS.iter().flat_map(|step| shapes.map(|shape| case(*step, shape))).collect()
}

/// The model's shapes.
pub fn true_shapes() -> Vec<LazyCase> {
    at_shapes(TRUE_ROWS, &[(1, 512, 1.0), (8, 512, 1.0)], case)
}

fn case(step: Step, shape: (usize, usize, f32)) -> Case {
    let (per_token, cols, scale) = shape;
    let mut b = CaseBuilder::new(step);
    let rows = b.bucket() * per_token;
    let values = b.random.normals(b.rows() * per_token * cols, scale);
    let gate = b.input(rows, cols, &values);
    let up = b.normal(per_token, cols);
    let out = b.output(rows, cols, DType::F32);
    b.finish(&format!("{per_token} × {cols}, gates ±{scale}"), SwiGlu { gate, up, out, per_token }, 2e-6)
}
