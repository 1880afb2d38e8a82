//! f32 activations: a few weight rows are decoded to f32 and serve every activation row.

use std::ops::Range;

use crate::cpu::columns::ColumnsMut;
use crate::cpu::isa::multiversion;
use crate::cpu::lanes::{Lanes, dots};
use crate::ops::linear::simd::decode::decode_row_body;
use crate::ops::linear::simd::{MatrixBytes, RowMap};

/// Weight rows decoded together: enough sums in flight to hide the latency of addition.
const BLOCK: usize = 4;

/// Bytes of scratch for K inputs.
pub(super) const fn scratch_bytes(cols: usize) -> usize {
    BLOCK * cols * 4
}

multiversion! {
    pub(super) fn matmul(
        w: &MatrixBytes,
        x: &[f32],
        rows: &RowMap,
        columns: Range<usize>,
        scratch: &mut [f32],
        out: &mut ColumnsMut,
    ) = matmul_body;
}

#[inline(always)]
fn matmul_body<V: Lanes>(
    w: &MatrixBytes,
    x: &[f32],
    rows: &RowMap,
    columns: Range<usize>,
    scratch: &mut [f32],
    out: &mut ColumnsMut,
) {
    let cols = w.cols;
    let decoded = &mut scratch[..BLOCK * cols];
    for first in columns.clone().step_by(BLOCK) {
        let count = BLOCK.min(columns.end - first);
        for (i, decoded) in decoded.chunks_exact_mut(cols).take(count).enumerate() {
            decode_row_body::<V>(w, first + i, decoded);
        }
        // Past the last column stands what an earlier block left: computed and dropped.
        let block: [&[f32]; BLOCK] = std::array::from_fn(|i| &decoded[i * cols..][..cols]);
        let at = first - columns.start;
        for i in 0..rows.len() {
            let sums = dots::<V, BLOCK>(&x[rows.input(i) * cols..][..cols], block);
            out.row(rows.output(i))[at..at + count].copy_from_slice(&sums[..count]);
        }
    }
}
