//! Reference of `expert_gate_up`: the three ops it stands for, their results between in private memory.

use super::ExpertGateUp;
use crate::inputs::StepInputs;
use crate::ops::{expert_linear, swiglu};
use crate::reference::Memory;

/// `silu(x · Gᵀ) ⊙ (x · Uᵀ)`.
pub fn run(op: &ExpertGateUp, mem: &mut Memory, inputs: &StepInputs) {
    expert_linear::reference::run(&op.gate, mem, inputs);
    expert_linear::reference::run(&op.up, mem, inputs);
    swiglu::reference::run(&op.act, mem, inputs);
}
