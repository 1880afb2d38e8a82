//! Reference of `moe_gate_up`: pair by pair, then the shared expert; results between in private memory.

use super::MoeGateUp;
use crate::inputs::StepInputs;
use crate::ops::linear::reference::multiply;
use crate::ops::{linear, swiglu};
use crate::reference::Memory;

/// Projections and activation of every chosen expert and the shared one.
pub fn run(op: &MoeGateUp, mem: &mut Memory, inputs: &StepInputs) {
    for t in 0..inputs.num_tokens() {
        for (rank, expert) in mem.ids(&op.experts, t).into_iter().enumerate() {
            let pair = t * op.experts.cols + rank;
            for part in [&op.routed.gate, &op.routed.up] {
                multiply(mem, &part.x, (&part.weight, expert as usize), &part.out, &[(t, pair)]);
            }
        }
    }
    swiglu::reference::run(&op.routed.act, mem, inputs);
    linear::reference::run(&op.gate, mem, inputs);
    linear::reference::run(&op.up, mem, inputs);
    swiglu::reference::run(&op.act, mem, inputs);
}
