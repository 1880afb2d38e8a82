//! CPU kernel.

use super::SigmoidGate;
use crate::cpu::isa::Isa;
use crate::cpu::lanes;
use crate::cpu::pool::Pool;

/// All rows of `out`.
pub fn run(isa: Isa, pool: &Pool, op: &SigmoidGate, x: &[f32], gate: &[f32], out: &mut [f32]) {
    let (cols, dim) = (op.x.cols, op.x.cols / op.heads);
    pool.rows(out, cols, 16 * cols, |range, part| {
        for (row, out) in range.zip(part.chunks_exact_mut(cols)) {
            let (x, gate) = (&x[row * cols..][..cols], &gate[row * op.gate.cols..][..op.gate.cols]);
            for (head, out) in out.chunks_exact_mut(dim).enumerate() {
                gated(isa, &x[head * dim..][..dim], &gate[head * op.stride + op.start..][..dim], out);
            }
        }
    });
}

fn gated(isa: Isa, x: &[f32], gate: &[f32], out: &mut [f32]) {
    lanes::sigmoid(isa, gate, out);
    for (o, &x) in out.iter_mut().zip(x) {
        *o *= x;
    }
}
