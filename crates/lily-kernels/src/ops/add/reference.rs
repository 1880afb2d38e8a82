//! Reference of `add`.

use super::Add;
use crate::inputs::StepInputs;
use crate::reference::Memory;

/// `out = a + b`.
pub fn run(op: &Add, mem: &mut Memory, inputs: &StepInputs) {
    for t in 0..inputs.num_tokens() {
        let (a, b) = (mem.row(&op.a, t), mem.row(&op.b, t));
        let sum: Vec<f64> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
        mem.set_row(&op.out, t, &sum);
    }
}
