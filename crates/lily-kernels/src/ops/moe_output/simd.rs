//! CPU kernel: the three ops' row functions, one row at a time while it is in cache.

use super::MoeOutput;
use crate::cpu::isa::Isa;
use crate::cpu::pool::Pool;
use crate::ops::combine_experts::simd::combine;
use crate::ops::shared_expert_add::simd::add_gated;

/// Inputs, each of the step's true rows.
pub struct Inputs<'a> {
    /// `[T·K, D]`.
    pub experts: &'a [f32],
    /// `[T, K]`.
    pub weights: &'a [f32],
    /// `[T, D]`.
    pub shared: &'a [f32],
    /// `[T, 1]`.
    pub gate: &'a [f32],
    /// `[T, D]`.
    pub residual: &'a [f32],
}

/// All rows of `out`.
pub fn run(isa: Isa, pool: &Pool, op: &MoeOutput, x: &Inputs, out: &mut [f32]) {
    let (top_k, cols) = (op.combine.weights.cols, op.add.out.cols);
    pool.rows(out, cols, 2 * (top_k + 2) * cols, |range, part| {
        for (t, out) in range.zip(part.chunks_exact_mut(cols)) {
            combine(&x.experts[t * top_k * cols..][..top_k * cols], &x.weights[t * top_k..][..top_k], out);
            add_gated(isa, &x.shared[t * cols..][..cols], x.gate[t], out);
            // The residual comes second here and first in `add`: addition commutes to the bit.
            for (o, &r) in out.iter_mut().zip(&x.residual[t * cols..][..cols]) {
                *o += r;
            }
        }
    });
}
