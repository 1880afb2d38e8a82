//! Reference of `gather_rows`.

use super::GatherRows;
use crate::inputs::StepInputs;
use crate::reference::Memory;

/// `out[i] = x[outputs[i]]`.
pub fn run(op: &GatherRows, mem: &mut Memory, inputs: &StepInputs) {
    for (i, &row) in inputs.outputs.iter().enumerate() {
        let x = mem.row(&op.x, row as usize);
        mem.set_row(&op.out, i, &x);
    }
}
