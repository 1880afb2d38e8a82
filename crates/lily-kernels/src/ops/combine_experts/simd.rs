//! CPU kernel.

use crate::cpu::pool::Pool;

/// `x` `[T·K, D]`, `weights` `[T, K]` → `out` `[T, D]`.
pub fn run(pool: &Pool, dims: (usize, usize), x: &[f32], weights: &[f32], out: &mut [f32]) {
    let (top_k, cols) = dims;
    pool.rows(out, cols, 2 * top_k * cols, |range, part| {
        for (t, out) in range.zip(part.chunks_exact_mut(cols)) {
            combine(&x[t * top_k * cols..][..top_k * cols], &weights[t * top_k..][..top_k], out);
        }
    });
}

/// One token: experts in rank order.
pub fn combine(x: &[f32], weights: &[f32], out: &mut [f32]) {
    out.fill(0.0);
    let cols = out.len();
    for (x, &w) in x.chunks_exact(cols).zip(weights) {
        for (o, &x) in out.iter_mut().zip(x) {
            *o += w * x;
        }
    }
}
