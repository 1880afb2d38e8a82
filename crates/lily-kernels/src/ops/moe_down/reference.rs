//! Reference of `moe_down`: pair by pair, then the shared expert, then their sum; results between in private memory.

use super::MoeDown;
use crate::inputs::StepInputs;
use crate::ops::linear::reference::multiply;
use crate::ops::{linear, moe_output};
use crate::reference::Memory;

/// Projections, weights, residual.
pub fn run(op: &MoeDown, mem: &mut Memory, inputs: &StepInputs) {
    for t in 0..inputs.num_tokens() {
        for (rank, expert) in mem.ids(&op.experts, t).into_iter().enumerate() {
            let pair = t * op.experts.cols + rank;
            multiply(mem, &op.routed.x, (&op.routed.weight, expert as usize), &op.routed.out, &[(pair, pair)]);
        }
    }
    linear::reference::run(&op.shared, mem, inputs);
    moe_output::reference::run(&op.output, mem, inputs);
}
