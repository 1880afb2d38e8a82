//! Reference of `swiglu`.

use super::SwiGlu;
use crate::inputs::StepInputs;
use crate::reference::Memory;
use crate::reference::math::silu;

/// `out = silu(gate) ⊙ up`.
pub fn run(op: &SwiGlu, mem: &mut Memory, inputs: &StepInputs) {
    for row in 0..inputs.num_tokens() * op.per_token {
        let (gate, up) = (mem.row(&op.gate, row), mem.row(&op.up, row));
        let out: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| silu(*g) * u).collect();
        mem.set_row(&op.out, row, &out);
    }
}
