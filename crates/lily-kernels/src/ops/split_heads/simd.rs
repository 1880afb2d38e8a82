//! CPU kernel: copies.

use super::SplitHeads;
use crate::cpu::pool::Pool;

/// All rows of `out`.
pub fn run(pool: &Pool, op: &SplitHeads, x: &[f32], out: &mut [f32]) {
    let cols = op.out.cols;
    pool.rows(out, cols, cols, |range, part| {
        for (row, out) in range.zip(part.chunks_exact_mut(cols)) {
            let x = &x[row * op.x.cols..][..op.x.cols];
            for (from, to) in op.pieces() {
                out[to..to + from.len()].copy_from_slice(&x[from]);
            }
        }
    });
}
