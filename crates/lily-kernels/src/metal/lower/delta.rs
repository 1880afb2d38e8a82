//! The Gated DeltaNet: convolution, gates, recurrence. What has a state is launched once for each sequence.

use super::sources::{CONV1D_SILU, GATED_DELTA, GATED_DELTA_CHUNKS, GATED_DELTA_STEP, GDN_GATES};
use super::{Arguments, Prepared};
use crate::metal::step::Step;
use crate::ops::conv1d_silu::Conv1dSilu;
use crate::ops::gated_delta::GatedDelta;
use crate::ops::gated_delta_step::GatedDeltaStep;
use crate::ops::gated_rms_norm::GatedRmsNorm;
use crate::ops::gdn_gates::GdnGates;
use crate::policy::Grid;

/// Elements of a key, and values of a head, that `gated_delta.metal` has room for.
const MOST_K_DIM: usize = 256;
const MOST_V_DIM: usize = 128;

/// Why the recurrence cannot run here.
pub fn unsupported(o: &GatedDelta) -> Option<String> {
    let (k, v) = (o.k_dim(), o.v_dim());
    (k > MOST_K_DIM || v > MOST_V_DIM)
        .then(|| format!("its recurrence takes heads of up to {MOST_K_DIM} by {MOST_V_DIM}, not {k} by {v}"))
}

pub fn gdn_gates<'a>(step: &Step<'a>, grid: Grid, o: &GdnGates) -> Prepared<'a> {
    let tensors = [&o.a, &o.b, &o.a_log, &o.dt_bias, &o.decay, &o.beta];
    let buffers = tensors.into_iter().map(|t| step.at(t)).collect();
    Prepared::new(GDN_GATES, grid, buffers).arguments(Arguments::of(&[o.a.cols]))
}

pub fn conv1d_silu<'a>(step: &Step<'a>, grid: Grid, o: &Conv1dSilu) -> Vec<Prepared<'a>> {
    let taps = o.weight.rows;
    let launch = |s| {
        let states = [step.state_in(s, &o.state_in), step.state_out(s, &o.state_out)];
        let buffers = vec![step.at(&o.x), step.at(&o.weight), states[0], states[1], step.at(&o.out)];
        Prepared::new(CONV1D_SILU, grid, buffers).arguments(Arguments::of(&[o.x.cols, taps, s.first_row, s.num_rows]))
    };
    step.inputs.sequences.iter().map(launch).collect()
}

/// The recurrence, and with `norm` what follows it.
pub fn gated_delta<'a>(step: &Step<'a>, grid: Grid, o: &GatedDelta, norm: Option<&GatedRmsNorm>) -> Vec<Prepared<'a>> {
    let v_start = o.v.cols - o.v_heads() * o.v_dim();
    let is_scan = grid.kernel == "gated_delta" || grid.kernel == "gated_delta_blocks";
    let launch = |s| {
        let mut buffers: Vec<_> = [&o.qk, &o.v, &o.decay, &o.beta].into_iter().map(|t| step.at(t)).collect();
        buffers.extend([step.state_in(s, &o.state_in), step.state_out(s, &o.state_out)]);
        let sizes = [o.k_heads(), o.v_heads(), o.k_dim(), o.v_dim(), o.v.cols, v_start, s.first_row, s.num_rows];
        if !is_scan {
            buffers.push(step.at(&o.out));
            return Prepared::new(GATED_DELTA_CHUNKS, grid, buffers).arguments(Arguments::of(&sizes));
        }
        // Without a norm the kernel reads neither; something is bound all the same.
        let (z, weight, out) = norm.map_or((&o.v, &o.v, &o.out), |norm| (&norm.z, &norm.weight, &norm.out));
        buffers.extend([z, weight, out].map(|t| step.at(t)));
        Prepared::new(GATED_DELTA, grid, buffers)
            .constants(&[norm.is_some().into()])
            .arguments(Arguments::of(&sizes).float(norm.map_or(0.0, |norm| norm.eps)))
    };
    step.inputs.sequences.iter().map(launch).collect()
}

pub fn gated_delta_step<'a>(step: &Step<'a>, grid: Grid, o: &GatedDeltaStep) -> Vec<Prepared<'a>> {
    let (conv, gates, delta, norm) = (&o.conv, &o.gates, &o.delta, &o.norm);
    let launch = |s| {
        let mut buffers = vec![step.at(&conv.x), step.at(&conv.weight)];
        buffers.extend([step.state_in(s, &conv.state_in), step.state_out(s, &conv.state_out)]);
        buffers.extend([&gates.a, &gates.b, &gates.a_log, &gates.dt_bias].map(|t| step.at(t)));
        buffers.extend([step.state_in(s, &delta.state_in), step.state_out(s, &delta.state_out)]);
        buffers.extend([&norm.z, &norm.weight, &o.out, &o.squares].map(|t| step.at(t)));
        let sizes = [delta.k_heads(), delta.v_heads(), delta.k_dim(), delta.v_dim(), conv.weight.rows, s.first_row];
        Prepared::new(GATED_DELTA_STEP, grid, buffers).arguments(Arguments::of(&sizes).float(norm.eps))
    };
    step.inputs.sequences.iter().map(launch).collect()
}
