//! Cases of `conv1d_silu`.

use super::Conv1dSilu;
use crate::check::{Case, CaseBuilder, LazyCase, STEPS, Step, TRUE_ROWS, at_shapes};
use crate::tensor::{DType, Space, Tensor};

/// Steps shorter and longer than the state; the model's four taps and two.
pub fn cases() -> Vec<Case> {
    let shapes = [(4, 67), (4, 320), (2, 64)];
    STEPS.iter().flat_map(|step| shapes.map(|shape| case(*step, shape))).collect()
}

/// The model's shapes.
pub fn true_shapes() -> Vec<LazyCase> {
    at_shapes(TRUE_ROWS, &[(4, 8192)], case)
}

fn case(step: Step, shape: (usize, usize)) -> Case {
    let (taps, channels) = shape;
    let mut b = CaseBuilder::new(step);
    let x = b.normal(1, channels);
    let values = b.random.normals(taps * channels, 0.5);
    let weight = b.constant(taps, &values);
    let state_in = b.state(taps - 1, channels);
    let state_out = Tensor { space: Space::StateOut, ..state_in };
    let out = b.output(b.bucket(), channels, DType::F32);
    b.finish(&format!("{taps} taps, {channels} channels"), Conv1dSilu { x, weight, state_in, state_out, out }, 2e-6)
}
