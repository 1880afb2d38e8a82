//! Cases of `rope`.

use super::Rope;
use crate::check::{Case, CaseBuilder, LazyCase, STEPS, Step, TRUE_STEPS, at_shapes};
use crate::tensor::DType;

/// Far positions, where an angle is many turns.
const FAR: Step = Step::Decode { bucket: 4, starts: &[262_143, 100_000, 4_097] };

/// Heads, dim and rotary dim: a quarter, half and all of a head.
pub fn cases() -> Vec<Case> {
    let shapes = [(1, 64, 16), (3, 256, 64), (2, 128, 128)];
    STEPS.iter().chain([&FAR]).flat_map(|step| shapes.map(|shape| case(*step, shape))).collect()
}

/// The model's shapes.
pub fn true_shapes() -> Vec<LazyCase> {
    at_shapes(TRUE_STEPS, &[(16, 256, 64), (2, 256, 64)], case)
}

/// `base^(−2i/rotary)` with the model's base.
pub fn inv_freq(rotary: usize) -> Vec<f32> {
    (0..rotary / 2).map(|i| 1e7f64.powf(-2.0 * i as f64 / rotary as f64) as f32).collect()
}

fn case(step: Step, shape: (usize, usize, usize)) -> Case {
    let (heads, dim, rotary) = shape;
    let mut b = CaseBuilder::new(step);
    let x = b.normal(1, heads * dim);
    let inv_freq = b.constant(1, &inv_freq(rotary));
    let out = b.output(b.bucket(), heads * dim, DType::F32);
    b.finish(&format!("{heads} heads of {dim}, {rotary} rotary"), Rope { x, inv_freq, out, head_dim: dim }, 3e-6)
}
