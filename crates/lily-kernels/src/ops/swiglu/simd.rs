//! CPU kernel.

use crate::cpu::isa::Isa;
use crate::cpu::lanes;
use crate::cpu::pool::Pool;

/// `out = silu(gate) ⊙ up`, element by element.
pub fn run(isa: Isa, pool: &Pool, gate: &[f32], up: &[f32], out: &mut [f32]) {
    pool.rows(out, 1, 16, |range, part| swiglu(isa, &gate[range.clone()], &up[range], part));
}

/// One run of elements.
pub fn swiglu(isa: Isa, gate: &[f32], up: &[f32], out: &mut [f32]) {
    lanes::silu(isa, gate, out);
    for (o, &u) in out.iter_mut().zip(up) {
        *o *= u;
    }
}
