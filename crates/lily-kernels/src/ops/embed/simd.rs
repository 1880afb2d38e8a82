//! CPU kernel: decodes one table row per token.

use crate::cpu::isa::Isa;
use crate::cpu::pool::Pool;
use crate::ops::linear::simd::{MatrixBytes, decode_row};

/// `out[t] = table[tokens[t]]`, `out` of `[T, D]`.
pub fn run(isa: Isa, pool: &Pool, tokens: &[u32], table: &MatrixBytes, out: &mut [f32]) {
    pool.rows(out, table.cols, 4 * table.cols, |range, part| {
        for (&token, row) in tokens[range].iter().zip(part.chunks_exact_mut(table.cols)) {
            decode_row(isa, table, token as usize, row);
        }
    });
}
