//! Reference of `moe_output`: the three ops it stands for, their results between in private memory.

use super::MoeOutput;
use crate::inputs::StepInputs;
use crate::ops::{add, combine_experts, shared_expert_add};
use crate::reference::Memory;

/// Routed experts, shared expert, residual.
pub fn run(op: &MoeOutput, mem: &mut Memory, inputs: &StepInputs) {
    combine_experts::reference::run(&op.combine, mem, inputs);
    shared_expert_add::reference::run(&op.shared, mem, inputs);
    add::reference::run(&op.add, mem, inputs);
}
