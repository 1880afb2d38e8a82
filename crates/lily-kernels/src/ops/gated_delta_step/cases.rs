//! Cases of `gated_delta_step`.

use super::GatedDeltaStep;
use crate::check::{Case, CaseBuilder, DECODE_STEPS, Step};
use crate::ops::conv1d_silu::Conv1dSilu;
use crate::ops::gated_delta::GatedDelta;
use crate::ops::gated_delta::cases::{SHAPES, name};
use crate::ops::gated_rms_norm::GatedRmsNorm;
use crate::ops::gdn_gates::GdnGates;
use crate::ops::l2_norm::L2Norm;
use crate::tensor::{DType, Space, Tensor};

/// Shapes of `gated_delta`, whose heads have one part to four, and one whose last part is short.
pub fn cases() -> Vec<Case> {
    let shapes = SHAPES.into_iter().chain([(1, 3, 32, 40)]);
    shapes.flat_map(|shape| DECODE_STEPS.iter().map(move |step| case(*step, shape))).collect()
}

fn case(step: Step, shape: (usize, usize, usize, usize)) -> Case {
    let (hk, hv, dk, dv) = shape;
    let (taps, channels) = (4, 2 * hk * dk + hv * dv);
    let mut b = CaseBuilder::new(step);
    let x = b.normal(1, channels);
    let values = b.random.normals(taps * channels, 0.5);
    let weight = b.constant(taps, &values);
    // One range holds both states, as a layer's memory does.
    let both = b.state(1, (taps - 1) * channels + hv * dv * dk);
    let conv_in = Tensor { rows: taps - 1, cols: channels, ..both };
    let delta_in = Tensor { offset: both.offset + conv_in.bytes(), rows: hv * dv, cols: dk, ..both };
    let after = |t: Tensor| Tensor { space: Space::StateOut, ..t };
    let conv =
        Conv1dSilu { x, weight, state_in: conv_in, state_out: after(conv_in), out: b.temp(b.bucket(), channels) };
    let (a, beta) = (b.normal(1, hv), b.normal(1, hv));
    let (a_log, dt_bias) = (b.random.normals(hv, 0.5), b.random.normals(hv, 0.5));
    let gates = GdnGates {
        a,
        b: beta,
        a_log: b.constant(1, &a_log),
        dt_bias: b.constant(1, &dt_bias),
        decay: b.temp(b.bucket(), hv),
        beta: b.temp(b.bucket(), hv),
    };
    let l2 = L2Norm { x: conv.out, out: b.temp(b.bucket(), 2 * hk * dk), dim: dk };
    let delta = GatedDelta {
        qk: l2.out,
        v: conv.out,
        decay: gates.decay,
        beta: gates.beta,
        state_in: delta_in,
        state_out: after(delta_in),
        out: b.temp(b.bucket(), hv * dv),
    };
    let z = b.normal(1, hv * dv);
    let values = b.random.normals(dv, 1.0);
    let weight = b.constant(1, &values);
    let norm = GatedRmsNorm { y: delta.out, z, weight, out: b.temp(b.bucket(), hv * dv), eps: 1e-6 };
    let out = b.output(b.bucket(), hv * dv, DType::F32);
    let squares = b.output(b.bucket(), hv * dv.div_ceil(super::PART), DType::F32);
    b.finish(&name(shape), GatedDeltaStep { conv, gates, l2, delta, norm, out, squares }, 1e-5)
}
