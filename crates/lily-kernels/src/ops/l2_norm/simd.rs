//! CPU kernel.

use super::{EPS, L2Norm};
use crate::cpu::isa::Isa;
use crate::cpu::lanes;
use crate::cpu::pool::Pool;

/// All rows of `out`.
pub fn run(isa: Isa, pool: &Pool, op: &L2Norm, x: &[f32], out: &mut [f32]) {
    let (cols, heads) = (op.out.cols, op.heads());
    let q_scale = 1.0 / (op.dim as f32).sqrt();
    pool.rows(out, cols, 4 * cols, |range, part| {
        for (row, out) in range.zip(part.chunks_exact_mut(cols)) {
            let x = &x[row * op.x.cols..][..cols];
            for (head, (x, out)) in x.chunks_exact(op.dim).zip(out.chunks_exact_mut(op.dim)).enumerate() {
                norm(isa, x, if head < heads { q_scale } else { 1.0 }, out);
            }
        }
    });
}

fn norm(isa: Isa, x: &[f32], factor: f32, out: &mut [f32]) {
    let scale = (1.0 / (lanes::sum_squares(isa, x) + EPS).sqrt()) * factor;
    for (o, &x) in out.iter_mut().zip(x) {
        *o = x * scale;
    }
}
