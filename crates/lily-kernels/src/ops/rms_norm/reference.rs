//! Reference of `rms_norm`.

use super::RmsNorm;
use crate::inputs::StepInputs;
use crate::reference::Memory;
use crate::reference::math::rms_norm;

/// Run by run.
pub fn run(op: &RmsNorm, mem: &mut Memory, inputs: &StepInputs) {
    let weight = mem.row(&op.weight, 0);
    for row in 0..inputs.rows(op.rows) {
        for head in 0..op.heads {
            let first = head * op.stride;
            let x = mem.floats(&op.x, row, first..first + op.dim());
            mem.set_floats(&op.out, row, head * op.dim(), &rms_norm(&x, &weight, op.eps));
        }
    }
}
