//! Reference of `gated_delta_step`: the ops it stands for up to the recurrence, then the norm without its factor.

use super::{GatedDeltaStep, PART};
use crate::inputs::StepInputs;
use crate::ops::{conv1d_silu, gated_delta, gdn_gates, l2_norm};
use crate::reference::Memory;
use crate::reference::math::{dot, silu};

/// Convolution, gates, norms, recurrence, gating.
pub fn run(op: &GatedDeltaStep, mem: &mut Memory, inputs: &StepInputs) {
    conv1d_silu::reference::run(&op.conv, mem, inputs);
    gdn_gates::reference::run(&op.gates, mem, inputs);
    l2_norm::reference::run(&op.l2, mem, inputs);
    gated_delta::reference::run(&op.delta, mem, inputs);
    let weight = mem.row(&op.norm.weight, 0);
    for t in 0..inputs.num_tokens() {
        let (y, z) = (mem.row(&op.delta.out, t), mem.row(&op.norm.z, t));
        let heads = y.chunks(weight.len());
        let squares: Vec<f64> = heads.flat_map(|head| head.chunks(PART).map(|part| dot(part, part))).collect();
        let out: Vec<f64> = y.iter().zip(weight.iter().cycle()).zip(&z).map(|((y, w), z)| y * w * silu(*z)).collect();
        mem.set_row(&op.out, t, &out);
        mem.set_row(&op.squares, t, &squares);
    }
}
