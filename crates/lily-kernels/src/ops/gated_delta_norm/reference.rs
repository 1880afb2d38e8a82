//! Reference of `gated_delta_norm`: the two ops it stands for, the recurrence's output in private memory.

use super::GatedDeltaNorm;
use crate::inputs::StepInputs;
use crate::ops::{gated_delta, gated_rms_norm};
use crate::reference::Memory;

/// Recurrence, then norm and gate.
pub fn run(op: &GatedDeltaNorm, mem: &mut Memory, inputs: &StepInputs) {
    gated_delta::reference::run(&op.delta, mem, inputs);
    gated_rms_norm::reference::run(&op.norm, mem, inputs);
}
