//! Cases of `gated_delta_norm`.

use super::GatedDeltaNorm;
use crate::check::{Case, CaseBuilder, LazyCase, STEPS, Step, TRUE_ROWS, at_shapes};
use crate::ops::gated_delta::cases::{SHAPES, TRUE_SHAPE, name, operands};
use crate::ops::gated_rms_norm::GatedRmsNorm;
use crate::tensor::DType;

/// Shapes of `gated_delta`.
pub fn cases() -> Vec<Case> {
    STEPS.iter().flat_map(|step| SHAPES.map(|shape| case(*step, shape))).collect()
}

/// The model's shapes.
pub fn true_shapes() -> Vec<LazyCase> {
    // The norm scales a head up whose outputs are small, and their errors with them; among 16,384 there is such a head.
    at_shapes(TRUE_ROWS, &[TRUE_SHAPE], |step, shape| Case { tolerance: 3e-5, ..case(step, shape) })
}

fn case(step: Step, shape: (usize, usize, usize, usize)) -> Case {
    let (_, hv, _, dv) = shape;
    let mut b = CaseBuilder::new(step);
    let y = b.temp(b.bucket(), hv * dv);
    let delta = operands(&mut b, shape, y);
    let z = b.normal(1, hv * dv);
    let values = b.random.normals(dv, 1.0);
    let weight = b.constant(1, &values);
    let out = b.output(b.bucket(), hv * dv, DType::F32);
    let norm = GatedRmsNorm { y, z, weight, out, eps: 1e-6 };
    b.finish(&name(shape), GatedDeltaNorm { delta, norm }, 1e-5)
}
