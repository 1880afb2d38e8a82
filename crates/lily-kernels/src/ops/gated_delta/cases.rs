//! Cases of `gated_delta`, whose operands `gated_delta_norm` shares.

use super::GatedDelta;
use crate::check::{Case, CaseBuilder, LazyCase, STEPS, Step, TRUE_ROWS, at_shapes};
use crate::ops::linear::cases::LONG;
use crate::tensor::{DType, Space, Tensor};

/// Key heads, value heads, their dims.
pub const SHAPES: [(usize, usize, usize, usize); 4] =
    [(1, 1, 64, 64), (2, 6, 64, 32), (1, 4, 128, 128), (2, 2, 64, 128)];

/// The model's.
pub const TRUE_SHAPE: (usize, usize, usize, usize) = (16, 32, 128, 128);

/// One to three value heads a key head; the state carried over from earlier positions.
pub fn cases() -> Vec<Case> {
    let steps = STEPS.iter().chain([&LONG]);
    steps.flat_map(|step| SHAPES.map(|shape| case(*step, shape))).collect()
}

/// The model's shapes.
pub fn true_shapes() -> Vec<LazyCase> {
    at_shapes(TRUE_ROWS, &[TRUE_SHAPE], case)
}

fn case(step: Step, shape: (usize, usize, usize, usize)) -> Case {
    let mut b = CaseBuilder::new(step);
    let out = b.output(b.bucket(), shape.1 * shape.3, DType::F32);
    let op = operands(&mut b, shape, out);
    b.finish(&name(shape), op, 1e-5)
}

/// Names a shape.
pub fn name((hk, hv, dk, dv): (usize, usize, usize, usize)) -> String {
    format!("{hk}:{hv} heads of {dk}×{dv}")
}

/// Keys and queries of length 1 and `Dk^−½`, gates in (0, 1), as the ops before give them.
pub fn operands(b: &mut CaseBuilder, shape: (usize, usize, usize, usize), out: Tensor) -> GatedDelta {
    let (hk, hv, dk, dv) = shape;
    let mut heads = Vec::new();
    for i in 0..b.rows() * 2 * hk {
        let x = b.random.normals(dk, 1.0);
        let length = x.iter().map(|v| v * v).sum::<f32>().sqrt();
        let scale = if i % (2 * hk) < hk { 1.0 / (dk as f32).sqrt() } else { 1.0 };
        heads.extend(x.iter().map(|v| v * scale / length));
    }
    let qk = b.input(b.bucket(), 2 * hk * dk, &heads);
    let v = b.normal(1, 2 * hk * dk + hv * dv);
    let mut gates = || {
        let values: Vec<f32> = (0..b.rows() * hv).map(|_| b.random.signed() / 2.0 + 0.5).collect();
        b.input(b.bucket(), hv, &values)
    };
    let (decay, beta) = (gates(), gates());
    let state_in = b.state(hv * dv, dk);
    let state_out = Tensor { space: Space::StateOut, ..state_in };
    GatedDelta { qk, v, decay, beta, state_in, state_out, out }
}
