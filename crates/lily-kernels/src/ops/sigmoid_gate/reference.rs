//! Reference of `sigmoid_gate`.

use super::SigmoidGate;
use crate::inputs::StepInputs;
use crate::reference::Memory;
use crate::reference::math::sigmoid;

/// `out = x ⊙ σ(gate)`, head by head.
pub fn run(op: &SigmoidGate, mem: &mut Memory, inputs: &StepInputs) {
    let dim = op.x.cols / op.heads;
    for t in 0..inputs.num_tokens() {
        for head in 0..op.heads {
            let x = mem.floats(&op.x, t, head * dim..(head + 1) * dim);
            let first = head * op.stride + op.start;
            let gate = mem.floats(&op.gate, t, first..first + dim);
            let out: Vec<f64> = x.iter().zip(&gate).map(|(x, g)| x * sigmoid(*g)).collect();
            mem.set_floats(&op.out, t, head * dim, &out);
        }
    }
}
