//! CPU kernel.

use super::GatedRmsNorm;
use crate::cpu::isa::{Isa, multiversion};
use crate::cpu::lanes;
use crate::cpu::pool::Pool;

/// All rows of `out`.
pub fn run(isa: Isa, pool: &Pool, op: &GatedRmsNorm, y: &[f32], z: &[f32], weight: &[f32], out: &mut [f32]) {
    let dim = op.weight.cols;
    pool.rows(out, dim, 24 * dim, |range, part| {
        for (head, out) in range.zip(part.chunks_exact_mut(dim)) {
            norm(isa, &y[head * dim..][..dim], &z[head * dim..][..dim], weight, op.eps, out);
        }
    });
}

multiversion! {
    /// One head: `out = ((y · rsqrt(mean(y²) + eps)) · weight) · silu(z)`.
    pub fn norm(isa: Isa, y: &[f32], z: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        let mean = lanes::sum_squares(y) / y.len() as f32;
        let scale = 1.0 / (mean + eps).sqrt();
        for (((o, &y), &z), &w) in out.iter_mut().zip(y).zip(z).zip(weight) {
            *o = ((y * scale) * w) * lanes::silu(z);
        }
    }
}
