//! Reference of `norm_linears`: the ops it stands for, on a private copy of the normed rows.

use super::NormLinears;
use crate::inputs::StepInputs;
use crate::ops::linear::{Activations, Linear};
use crate::ops::rms_norm::RmsNorm;
use crate::ops::{linear, rms_norm};
use crate::reference::Memory;

/// Norm, copy, projections.
pub fn run(op: &NormLinears, mem: &mut Memory, inputs: &StepInputs) {
    let normed = mem.private(&op.norm.out);
    rms_norm::reference::run(&RmsNorm { out: normed, ..op.norm.clone() }, mem, inputs);
    for row in 0..inputs.rows(op.norm.rows) {
        let values = mem.row(&normed, row);
        mem.set_row(&op.norm.out, row, &values);
    }
    for l in &op.linears {
        linear::reference::run(&Linear { x: Activations::Full(normed), ..l.clone() }, mem, inputs);
    }
}
