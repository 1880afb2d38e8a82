//! CPU kernel.

use super::GatedRmsNorm;
use crate::cpu::isa::Isa;
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

/// One head: `out = ((y · rsqrt(mean(y²) + eps)) · weight) · silu(z)`.
pub fn norm(isa: Isa, y: &[f32], z: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let mean = lanes::sum_squares(isa, y) / y.len() as f32;
    let scale = 1.0 / (mean + eps).sqrt();
    lanes::silu(isa, z, out);
    for ((o, &y), &w) in out.iter_mut().zip(y).zip(weight) {
        *o *= (y * scale) * w;
    }
}

/// Elements activated at a time.
const RUN: usize = 64;

/// The same with `y` replaced by the result.
pub fn norm_in_place(isa: Isa, z: &[f32], weight: &[f32], eps: f32, y: &mut [f32]) {
    let mean = lanes::sum_squares(isa, y) / y.len() as f32;
    let scale = 1.0 / (mean + eps).sqrt();
    for ((y, z), w) in y.chunks_mut(RUN).zip(z.chunks(RUN)).zip(weight.chunks(RUN)) {
        let gate = &mut [0.0; RUN][..z.len()];
        lanes::silu(isa, z, gate);
        for ((y, &g), &w) in y.iter_mut().zip(&*gate).zip(w) {
            *y = g * ((*y * scale) * w);
        }
    }
}
