//! f32 activations: four weight rows are decoded to f32, a chunk of inputs at a time, and serve every activation row.

use std::ops::Range;

use crate::cpu::columns::ColumnsMut;
use crate::cpu::isa::{Isa, multiversion};
use crate::cpu::lanes::{LANES, Lanes};
use crate::ops::linear::simd::decode::decode_part;
use crate::ops::linear::simd::{MatrixBytes, RowMap};
use crate::tensor::Format;

/// Weight rows decoded together: enough sums in flight to hide the latency of addition.
const BLOCK: usize = 4;

/// Inputs decoded at a time: with their activations they stay in the first-level cache. A multiple of 16, so that an
/// input keeps its lane.
const CHUNK: usize = 512;

/// Activation rows that pass between two decodings of a chunk.
const PASS: usize = 32;

/// Sums of one activation row with the block, lane by lane.
type Sums = [[f32; LANES]; BLOCK];

/// Bytes of scratch for K inputs.
pub(super) const fn scratch_bytes(cols: usize) -> usize {
    4 * BLOCK * (PASS * LANES + if cols > CHUNK { cols } else { CHUNK })
}

/// Every row of `rows` with columns `columns` of the matrix.
pub(super) fn matmul(
    isa: Isa,
    w: &MatrixBytes,
    x: &[f32],
    rows: &RowMap,
    columns: Range<usize>,
    scratch: &mut [f32],
    out: &mut ColumnsMut,
) {
    // A group is decoded whole; where groups do not fill a chunk, the chunk is the row.
    let chunk = match w.format {
        Format::Affine { group, .. } if !CHUNK.is_multiple_of(group as usize) => w.cols,
        Format::Affine { .. } | Format::Dense(_) => CHUNK,
    };
    let (sums, decoded) = scratch.split_at_mut(PASS * BLOCK * LANES);
    let sums: &mut [Sums] = sums.as_chunks_mut().0.as_chunks_mut().0;
    for first in columns.clone().step_by(BLOCK) {
        let block = first..columns.end.min(first + BLOCK);
        let at = first - columns.start;
        for i in (0..rows.len()).step_by(PASS) {
            let sums = &mut sums[..PASS.min(rows.len() - i)];
            sums.fill([[0.0; LANES]; BLOCK]);
            for start in (0..w.cols).step_by(chunk) {
                let len = chunk.min(w.cols - start);
                let decoded = &mut decoded[..BLOCK * len];
                decode_block(isa, w, block.clone(), start, decoded);
                for (r, sums) in sums.iter_mut().enumerate() {
                    add_products(isa, &x[rows.input(i + r) * w.cols + start..][..len], decoded, sums);
                }
            }
            for (r, sums) in sums.iter().enumerate() {
                let row = &mut out.row(rows.output(i + r))[at..at + block.len()];
                row.copy_from_slice(&totals(isa, sums)[..block.len()]);
            }
        }
    }
}

multiversion! {
    fn decode_block(w: &MatrixBytes, rows: Range<usize>, start: usize, decoded: &mut [f32]) = decode_block_body;
    fn add_products(x: &[f32], decoded: &[f32], sums: &mut Sums) = add_products_body;
    fn totals(sums: &Sums) -> [f32; BLOCK] = totals_body;
}

/// A chunk of up to four rows, from input `start` on. What stands past them is summed too, and dropped.
#[inline(always)]
fn decode_block_body<V: Lanes>(w: &MatrixBytes, rows: Range<usize>, start: usize, decoded: &mut [f32]) {
    for (row, decoded) in rows.zip(decoded.chunks_exact_mut(decoded.len() / BLOCK)) {
        decode_part::<V>(w, row, start, decoded);
    }
}

/// Adds the products of one activation row's chunk with four decoded rows, in the order of `lanes::dot`.
#[inline(always)]
fn add_products_body<V: Lanes>(x: &[f32], decoded: &[f32], sums: &mut Sums) {
    let mut totals = [V::splat(0.0); BLOCK];
    for (total, sums) in totals.iter_mut().zip(&*sums) {
        *total = V::load(sums);
    }
    let (a, rest) = decoded.split_at(x.len());
    let (b, rest) = rest.split_at(x.len());
    let (c, d) = rest.split_at(x.len());
    let ((x_runs, x_rest), w) = (x.as_chunks(), [a, b, c, d].map(|w| w.as_chunks()));
    let [(a, _), (b, _), (c, _), (d, _)] = w;
    for ((((x, a), b), c), d) in x_runs.iter().zip(a).zip(b).zip(c).zip(d) {
        let x = V::load(x);
        totals[0] = totals[0].add_product(x, V::load(a));
        totals[1] = totals[1].add_product(x, V::load(b));
        totals[2] = totals[2].add_product(x, V::load(c));
        totals[3] = totals[3].add_product(x, V::load(d));
    }
    if !x_rest.is_empty() {
        let x = V::load_head(x_rest);
        for (total, (_, rest)) in totals.iter_mut().zip(w) {
            *total = total.add_product(x, V::load_head(rest));
        }
    }
    for (total, sums) in totals.iter().zip(sums) {
        total.store(sums);
    }
}

#[inline(always)]
fn totals_body<V: Lanes>(sums: &Sums) -> [f32; BLOCK] {
    let mut totals = [0.0; BLOCK];
    for (total, sums) in totals.iter_mut().zip(sums) {
        *total = V::load(sums).sum();
    }
    totals
}
