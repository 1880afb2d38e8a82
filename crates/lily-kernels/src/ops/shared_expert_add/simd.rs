//! CPU kernel.

use crate::cpu::isa::Isa;
use crate::cpu::lanes;
use crate::cpu::pool::Pool;

/// `x`, `shared`, `out` `[T, cols]`, `gate` `[T, 1]`.
pub fn run(isa: Isa, pool: &Pool, cols: usize, x: &[f32], shared: (&[f32], &[f32]), out: &mut [f32]) {
    let (shared, gate) = shared;
    pool.rows(out, cols, 2 * cols, |range, part| {
        for (t, out) in range.zip(part.chunks_exact_mut(cols)) {
            out.copy_from_slice(&x[t * cols..][..cols]);
            add_gated(isa, &shared[t * cols..][..cols], gate[t], out);
        }
    });
}

/// One token: `out += σ(gate) · shared`.
pub fn add_gated(isa: Isa, shared: &[f32], gate: f32, out: &mut [f32]) {
    let mut factor = [0.0];
    lanes::sigmoid(isa, &[gate], &mut factor);
    for (o, &s) in out.iter_mut().zip(shared) {
        *o += factor[0] * s;
    }
}
