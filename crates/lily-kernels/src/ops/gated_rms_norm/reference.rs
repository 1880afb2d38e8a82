//! Reference of `gated_rms_norm`.

use super::GatedRmsNorm;
use crate::inputs::StepInputs;
use crate::reference::Memory;
use crate::reference::math::{rms_norm, silu};

/// `out = rms_norm(y; weight) ⊙ silu(z)`, head by head.
pub fn run(op: &GatedRmsNorm, mem: &mut Memory, inputs: &StepInputs) {
    let dim = op.weight.cols;
    let weight = mem.row(&op.weight, 0);
    for t in 0..inputs.num_tokens() {
        let (y, z) = (mem.row(&op.y, t), mem.row(&op.z, t));
        let normed = y.chunks(dim).flat_map(|head| rms_norm(head, &weight, op.eps));
        let out: Vec<f64> = normed.zip(z).map(|(n, z)| n * silu(z)).collect();
        mem.set_row(&op.out, t, &out);
    }
}
