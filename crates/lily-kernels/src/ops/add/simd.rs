//! CPU kernel.

use crate::cpu::isa::{Isa, multiversion};
use crate::cpu::pool::Pool;

/// `out = a + b`, element by element.
pub fn run(isa: Isa, pool: &Pool, a: &[f32], b: &[f32], out: &mut [f32]) {
    pool.rows(out, 1, 1, |range, part| sum(isa, &a[range.clone()], &b[range], part));
}

multiversion! {
    fn sum(isa: Isa, a: &[f32], b: &[f32], out: &mut [f32]) {
        for ((o, &a), &b) in out.iter_mut().zip(a).zip(b) {
            *o = a + b;
        }
    }
}
