//! CPU kernel.

use super::Rope;
use crate::cpu::pool::Pool;

/// All rows of `out`; `position(row)` is the row's place in its sequence.
pub fn run(
    pool: &Pool,
    op: &Rope,
    position: &(dyn Fn(usize) -> usize + Sync),
    x: &[f32],
    inv_freq: &[f32],
    out: &mut [f32],
) {
    let cols = op.x.cols;
    pool.rows(out, cols, 2 * cols, |range, part| {
        for (row, out) in range.zip(part.chunks_exact_mut(cols)) {
            out.copy_from_slice(&x[row * cols..][..cols]);
            rotate(op.head_dim, position(row), inv_freq, out);
        }
    });
}

/// Rotates the packed heads of one row in place. The angle is an f32 product, as in the models' own code.
pub fn rotate(head_dim: usize, position: usize, inv_freq: &[f32], row: &mut [f32]) {
    let half = inv_freq.len();
    for (i, &freq) in inv_freq.iter().enumerate() {
        let (sin, cos) = (position as f32 * freq).sin_cos();
        for head in row.chunks_exact_mut(head_dim) {
            let (a, b) = (head[i], head[i + half]);
            head[i] = a * cos - b * sin;
            head[i + half] = b * cos + a * sin;
        }
    }
}
