//! Reference of `shared_expert_add`.

use super::SharedExpertAdd;
use crate::inputs::StepInputs;
use crate::reference::Memory;
use crate::reference::math::sigmoid;

/// `out = x + σ(gate) · shared`.
pub fn run(op: &SharedExpertAdd, mem: &mut Memory, inputs: &StepInputs) {
    for t in 0..inputs.num_tokens() {
        let gate = sigmoid(mem.row(&op.gate, t)[0]);
        let (x, shared) = (mem.row(&op.x, t), mem.row(&op.shared, t));
        let out: Vec<f64> = x.iter().zip(&shared).map(|(x, s)| x + gate * s).collect();
        mem.set_row(&op.out, t, &out);
    }
}
