//! CPU kernel.

use super::Conv1dSilu;
use crate::cpu::isa::{Isa, multiversion};
use crate::cpu::lanes;
use crate::cpu::pool::Pool;

/// One sequence: `x` and `out` are its rows, `state` its `[taps − 1, C]`.
pub fn run(
    isa: Isa,
    pool: &Pool,
    op: &Conv1dSilu,
    x: &[f32],
    weight: &[f32],
    states: (&[f32], &mut [f32]),
    out: &mut [f32],
) {
    let (cols, taps) = (op.x.cols, op.weight.rows);
    let (state_in, state_out) = states;
    // Row t − taps + 1 + j of the sequence; negative ones are in the state.
    let input = |row: isize| match usize::try_from(row) {
        Ok(row) => &x[row * cols..][..cols],
        Err(_) => &state_in[(row + taps as isize - 1) as usize * cols..][..cols],
    };
    pool.rows(out, cols, 24 * cols, |range, part| {
        for (t, out) in range.zip(part.chunks_exact_mut(cols)) {
            out.fill(0.0);
            for (j, tap) in weight.chunks_exact(cols).enumerate() {
                accumulate(isa, tap, input(t as isize - taps as isize + 1 + j as isize), out);
            }
            activate(isa, out);
        }
    });
    let rows = (x.len() / cols) as isize;
    for (j, place) in state_out.chunks_exact_mut(cols).enumerate() {
        place.copy_from_slice(input(rows - taps as isize + 1 + j as isize));
    }
}

multiversion! {
    fn accumulate(isa: Isa, tap: &[f32], x: &[f32], out: &mut [f32]) {
        for ((o, &w), &x) in out.iter_mut().zip(tap).zip(x) {
            *o += w * x;
        }
    }
}

multiversion! {
    fn activate(isa: Isa, out: &mut [f32]) {
        for o in out {
            *o = lanes::silu(*o);
        }
    }
}
