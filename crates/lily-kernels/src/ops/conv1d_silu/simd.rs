//! CPU kernel.

use super::Conv1dSilu;
use crate::cpu::isa::Isa;
use crate::cpu::lanes;
use crate::cpu::pool::Pool;

/// Channels summed before their activation.
const RUN: usize = 256;

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
            let rows = |j: usize| input(t as isize - taps as isize + 1 + j as isize);
            for (start, out) in (0..cols).step_by(RUN).zip(out.chunks_mut(RUN)) {
                let sums = &mut [0.0; RUN][..out.len()];
                for (j, tap) in weight.chunks_exact(cols).enumerate() {
                    accumulate(&tap[start..], &rows(j)[start..], sums);
                }
                lanes::silu(isa, sums, out);
            }
        }
    });
    let rows = (x.len() / cols) as isize;
    for (j, place) in state_out.chunks_exact_mut(cols).enumerate() {
        place.copy_from_slice(input(rows - taps as isize + 1 + j as isize));
    }
}

fn accumulate(tap: &[f32], x: &[f32], sums: &mut [f32]) {
    for ((s, &w), &x) in sums.iter_mut().zip(tap).zip(x) {
        *s += w * x;
    }
}
