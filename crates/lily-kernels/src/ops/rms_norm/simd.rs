//! CPU kernel.

use super::RmsNorm;
use crate::cpu::isa::Isa;
use crate::cpu::lanes;
use crate::cpu::pool::Pool;

/// All rows of `out`; `x` has the same number of rows.
pub fn run(isa: Isa, pool: &Pool, op: &RmsNorm, x: &[f32], weight: &[f32], out: &mut [f32]) {
    let (cols, x_cols) = (op.out.cols, op.x.cols);
    pool.rows(out, cols, 4 * cols, |range, part| {
        for (row, out) in range.zip(part.chunks_exact_mut(cols)) {
            row_norm(isa, op, &x[row * x_cols..][..x_cols], weight, out);
        }
    });
}

/// One row: every head of `x` into the packed heads of `out`.
pub fn row_norm(isa: Isa, op: &RmsNorm, x: &[f32], weight: &[f32], out: &mut [f32]) {
    for (head, out) in out.chunks_exact_mut(op.dim()).enumerate() {
        norm(isa, &x[head * op.stride..][..op.dim()], weight, op.eps, out);
    }
}

/// One run: `out = (x · rsqrt(mean(x²) + eps)) · weight`.
pub fn norm(isa: Isa, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let mean = lanes::sum_squares(isa, x) / x.len() as f32;
    let scale = 1.0 / (mean + eps).sqrt();
    for ((o, &x), &w) in out.iter_mut().zip(x).zip(weight) {
        *o = (x * scale) * w;
    }
}
