//! Attention of some rows of one sequence, the query heads of one KV head, on every instruction set. Per block of 256
//! positions: all scores, their exponentials and sum, the weighted values; then the block is merged into the rows.
//! Keys and values become f32 a few positions at a time and serve every row and query head of the tile.

use std::ops::Range;

use crate::cpu::columns::ColumnsMut;
use crate::cpu::isa::{Isa, multiversion};
use crate::cpu::lanes::{LANES, Lanes, Scratch, bf16_to_f32_body, dots};
use crate::inputs::KV_BLOCK;
use crate::ops::kv_write::KvLayer;
use crate::tensor::DType;

/// What one task attends with.
#[derive(Clone)]
pub struct Tile<'a> {
    /// `[T, Hq·head_dim]`: all rows and heads of the step.
    pub q: &'a [f32],
    /// Hq.
    pub q_heads: usize,
    /// Where a block holds this layer's keys and values.
    pub layer: KvLayer,
    /// Bytes of the sequence's n-th KV block; f32 or bf16 at any alignment.
    pub block: &'a dyn Fn(usize) -> &'a [u8],
    /// Which KV head.
    pub kv_head: usize,
    /// Rows of the step.
    pub rows: Range<usize>,
    /// Position of the first of them; the others follow.
    pub first_position: usize,
}

impl Tile<'_> {
    /// Query heads that share the KV head.
    const fn heads(&self) -> usize {
        self.q_heads / self.layer.heads
    }

    /// Positions of a block that a row of the tile sees; the row is counted from the tile's first.
    fn seen(&self, row: usize, block: usize) -> usize {
        (self.first_position + row + 1).saturating_sub(block * KV_BLOCK).min(KV_BLOCK)
    }

    /// One query: row of the tile × head of the group.
    #[inline(always)]
    fn query(&self, row: usize, head: usize) -> &[f32] {
        let dim = self.layer.head_dim;
        let head = self.kv_head * self.heads() + head;
        &self.q[((self.rows.start + row) * self.q_heads + head) * dim..][..dim]
    }
}

/// Bytes of `Scratch` that `attend` needs for a tile.
pub const fn scratch_bytes(rows: usize, heads_per_kv_head: usize, head_dim: usize) -> usize {
    4 * (rows * heads_per_kv_head * (KV_BLOCK + head_dim + 4) + CHUNK * head_dim)
}

/// Positions that are converted at a time: together with a query they stay in the first-level cache.
const CHUNK: usize = 16;

/// Keys per query in flight.
const KEYS: usize = 4;

/// The tile's rows of `out`, `[T, heads_per_kv_head·head_dim]`: the columns of this KV head's query heads.
pub fn attend(isa: Isa, tile: &Tile, scratch: &mut Scratch, out: &mut ColumnsMut) {
    assert_eq!(out.width(), tile.heads() * tile.layer.head_dim);
    if tile.rows.is_empty() {
        return;
    }
    tile_of_rows(isa, tile, scratch.f32s(), out);
}

multiversion! {
    fn tile_of_rows(tile: &Tile, scratch: &mut [f32], out: &mut ColumnsMut) = tile_body;
}

/// Working memory, by query: row of the tile × query head.
struct Work<'a> {
    /// `[queries, 256]`: scores of the current block, then their exponentials.
    scores: &'a mut [f32],
    /// `[queries, head_dim]`: the current block's weighted values.
    values: &'a mut [f32],
    /// `[queries]`.
    merges: &'a mut [[f32; 4]],
    /// `[CHUNK, head_dim]`: keys or values as f32.
    chunk: &'a mut [f32],
}

// What `Work::merges` holds.
/// Σ of the exponentials so far, relative to the largest score so far, which stands at 0.
const SUM: usize = 1;
/// Factor of the values so far in the merge with the current block.
const KEEP: usize = 2;
/// Factor of the current block's values.
const TAKE: usize = 3;

#[inline(always)]
fn tile_body<V: Lanes>(tile: &Tile, scratch: &mut [f32], out: &mut ColumnsMut) {
    let (heads, dim) = (tile.heads(), tile.layer.head_dim);
    let queries = tile.rows.len() * heads;
    let (chunk, rest) = scratch.split_at_mut(CHUNK * dim);
    let (scores, rest) = rest.split_at_mut(queries * KV_BLOCK);
    let (values, rest) = rest.split_at_mut(queries * dim);
    let merges = &mut rest.as_chunks_mut().0[..queries];
    merges.fill([f32::NEG_INFINITY, 0.0, 0.0, 0.0]);
    let mut work = Work { scores, values, merges, chunk };
    for row in tile.rows.clone() {
        out.row(row).fill(0.0);
    }
    let positions = tile.first_position + tile.rows.len();
    for block in 0..positions.div_ceil(KV_BLOCK) {
        let bytes = (tile.block)(block);
        score::<V>(tile, block, bytes, &mut work);
        weigh::<V>(tile, block, bytes, &mut work);
        merge(tile, block, &work, out);
    }
    for (row, merges) in tile.rows.clone().zip(work.merges.chunks_exact(heads)) {
        for (out, merge) in out.row(row).chunks_exact_mut(dim).zip(merges) {
            out.iter_mut().for_each(|x| *x /= merge[SUM]);
        }
    }
}

/// Positions `first..` of a block's keys (0) or values (1) to f32.
#[inline(always)]
fn convert<V: Lanes>(tile: &Tile, bytes: &[u8], which: usize, first: usize, chunk: &mut [f32]) {
    let layer = &tile.layer;
    let bytes = &bytes[layer.row_offset(which, tile.kv_head, first)..][..chunk.len() * layer.dtype.bytes()];
    match layer.dtype {
        DType::Bf16 => bf16_to_f32_body::<V>(bytes, chunk),
        DType::F32 => {
            for (x, out) in bytes.as_chunks().0.iter().zip(chunk) {
                *out = f32::from_le_bytes(*x);
            }
        }
        DType::F16 | DType::U32 | DType::I32 | DType::I8 | DType::U8 => {
            panic!("a KV cache is f32 or bf16, not {:?}", layer.dtype)
        }
    }
}

/// The block's scores, turned into exponentials relative to the block's maximum; and the merge's factors.
#[inline(always)]
fn score<V: Lanes>(tile: &Tile, block: usize, bytes: &[u8], work: &mut Work) {
    let (heads, dim) = (tile.heads(), tile.layer.head_dim);
    let scale = 1.0 / (dim as f32).sqrt();
    let rows = tile.rows.len();
    for first in (0..tile.seen(rows - 1, block)).step_by(CHUNK) {
        convert::<V>(tile, bytes, 0, first, work.chunk);
        for row in (0..rows).filter(|&row| first < tile.seen(row, block)) {
            for head in 0..heads {
                let query = tile.query(row, head);
                // Keys past the row's own position are scored with the rest and dropped by `softmax`.
                let scores = &mut work.scores[(row * heads + head) * KV_BLOCK + first..][..CHUNK];
                let keys = work.chunk.chunks_exact(KEYS * dim);
                for (keys, scores) in keys.zip(scores.as_chunks_mut::<KEYS>().0) {
                    let mut each = [keys; KEYS];
                    for (each, key) in each.iter_mut().zip(keys.chunks_exact(dim)) {
                        *each = key;
                    }
                    *scores = dots::<V, KEYS>(query, each);
                    scores.iter_mut().for_each(|s| *s *= scale);
                }
            }
        }
    }
    for (query, scores) in work.scores.chunks_exact_mut(KV_BLOCK).enumerate() {
        let seen = tile.seen(query / heads, block);
        if seen > 0 {
            softmax::<V>(scores, seen, &mut work.merges[query]);
        }
    }
}

/// Exponentials of one query's scores of one block, their sum, and how they merge with what came before.
#[inline(always)]
fn softmax<V: Lanes>(scores: &mut [f32], seen: usize, merge: &mut [f32; 4]) {
    scores[seen..].fill(f32::NEG_INFINITY);
    let runs = &mut scores.as_chunks_mut::<LANES>().0[..seen.div_ceil(LANES)];
    let mut max = V::splat(f32::NEG_INFINITY);
    for run in &*runs {
        max = V::load(run).max(max);
    }
    let max = max.max_lane();
    let mut sum = V::splat(0.0);
    for run in runs {
        let e = V::load(run).sub(V::splat(max)).exp();
        e.store(run);
        sum = sum.add(e);
    }
    let [old_max, old_sum, ..] = *merge;
    let new_max = if old_max > max { old_max } else { max };
    let mut factors = [0.0; LANES];
    V::load_head(&[old_max - new_max, max - new_max]).exp().store(&mut factors);
    let [keep, take, ..] = factors;
    *merge = [new_max, old_sum * keep + sum.sum() * take, keep, take];
}

/// The block's `values[d] = Σ e_p · v[p][d]`, p ascending.
#[inline(always)]
fn weigh<V: Lanes>(tile: &Tile, block: usize, bytes: &[u8], work: &mut Work) {
    let (heads, dim) = (tile.heads(), tile.layer.head_dim);
    let rows = tile.rows.len();
    work.values.fill(0.0);
    for first in (0..tile.seen(rows - 1, block)).step_by(CHUNK) {
        convert::<V>(tile, bytes, 1, first, work.chunk);
        for row in 0..rows {
            let seen = tile.seen(row, block).saturating_sub(first).min(CHUNK);
            for query in row * heads..(row + 1) * heads {
                let weights = &work.scores[query * KV_BLOCK + first..][..seen];
                add_weighted::<V>(weights, work.chunk, &mut work.values[query * dim..][..dim]);
            }
        }
    }
}

/// Elements of a value that stay in registers over a chunk's positions.
const SPAN: usize = 4;

/// `values += Σ weights[p] · chunk[p]`, p ascending.
#[inline(always)]
fn add_weighted<V: Lanes>(weights: &[f32], chunk: &[f32], values: &mut [f32]) {
    let dim = values.len();
    let (spans, rest) = values.as_chunks_mut::<{ SPAN * LANES }>();
    let end = spans.len() * SPAN * LANES;
    for (span, values) in spans.iter_mut().enumerate() {
        let runs = values.as_chunks_mut::<LANES>().0;
        let mut sums = [V::splat(0.0); SPAN];
        for (sum, values) in sums.iter_mut().zip(&*runs) {
            *sum = V::load(values);
        }
        for (p, &weight) in weights.iter().enumerate() {
            let v = chunk[p * dim + span * SPAN * LANES..].as_chunks::<LANES>().0;
            let weight = V::splat(weight);
            for (sum, v) in sums.iter_mut().zip(&v[..SPAN]) {
                *sum = sum.add_product(weight, V::load(v));
            }
        }
        for (sum, values) in sums.iter().zip(runs) {
            sum.store(values);
        }
    }
    for (d, value) in rest.iter_mut().enumerate() {
        for (p, weight) in weights.iter().enumerate() {
            *value += weight * chunk[p * dim + end + d];
        }
    }
}

/// out ← out·e^(m − m′) + values·e^(m_b − m′) of the rows that see the block.
#[inline(always)]
fn merge(tile: &Tile, block: usize, work: &Work, out: &mut ColumnsMut) {
    let (heads, dim) = (tile.heads(), tile.layer.head_dim);
    for row in (0..tile.rows.len()).filter(|&row| tile.seen(row, block) > 0) {
        let out = out.row(tile.rows.start + row);
        let values = work.values[row * heads * dim..].chunks_exact(dim);
        let merges = &work.merges[row * heads..];
        for ((out, values), merge) in out.chunks_exact_mut(dim).zip(values).zip(merges) {
            for (out, value) in out.iter_mut().zip(values) {
                *out = *out * merge[KEEP] + value * merge[TAKE];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::lanes::tests::{numbers, same_bits, seconds};

    const KV_HEADS: usize = 2;

    /// A sequence whose last `rows` positions are the step.
    struct Case {
        dim: usize,
        heads: usize,
        rows: usize,
        positions: usize,
        q: Vec<f32>,
        layer: KvLayer,
        blocks: Vec<Vec<u8>>,
    }

    impl Case {
        /// `offset`: where the layer lies in a block. Positions that are not written are NaN.
        fn new(dim: usize, heads: usize, rows: usize, positions: usize, dtype: DType, offset: usize) -> Self {
            let layer = KvLayer { offset, heads: KV_HEADS, head_dim: dim, dtype };
            let mut blocks = vec![vec![0xff; offset + layer.bytes()]; positions.div_ceil(KV_BLOCK)];
            for position in 0..positions {
                for (which, head) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                    let row = numbers(dim, (position * 4 + which * 2 + head) as u64 + 10);
                    let at = layer.row_offset(which, head, position % KV_BLOCK);
                    let bytes = &mut blocks[position / KV_BLOCK][at..][..dim * dtype.bytes()];
                    for (x, bytes) in row.iter().zip(bytes.chunks_mut(dtype.bytes())) {
                        let bits = x.to_bits().to_le_bytes();
                        bytes.copy_from_slice(&bits[4 - dtype.bytes()..]);
                    }
                }
            }
            let q = numbers(rows * KV_HEADS * heads * dim, 5).iter().map(|x| x * 3.0).collect();
            Self { dim, heads, rows, positions, q, layer, blocks }
        }

        fn first_position(&self) -> usize {
            self.positions - self.rows
        }

        /// Rows computed in tiles of `tile` rows.
        fn run(&self, isa: Isa, tile: usize) -> Vec<f32> {
            let width = KV_HEADS * self.heads * self.dim;
            let mut out = vec![-7.0; self.rows * width];
            let mut scratch = Scratch::new(scratch_bytes(tile, self.heads, self.dim));
            scratch.f32s().fill(f32::NAN);
            let view = ColumnsMut::new(&mut out, width);
            for kv_head in 0..KV_HEADS {
                let columns = self.heads * self.dim;
                // SAFETY: one view is in use at a time.
                let mut view = unsafe { view.split(kv_head * columns..(kv_head + 1) * columns) };
                for first in (0..self.rows).step_by(tile) {
                    let tile = Tile {
                        q: &self.q,
                        q_heads: KV_HEADS * self.heads,
                        layer: self.layer,
                        block: &|n| &self.blocks[n],
                        kv_head,
                        rows: first..self.rows.min(first + tile),
                        first_position: self.first_position() + first,
                    };
                    attend(isa, &tile, &mut scratch, &mut view);
                }
            }
            out
        }

        /// Element `d` of the key or value of a position.
        fn cached(&self, which: usize, head: usize, position: usize, d: usize) -> f64 {
            let at = self.layer.row_offset(which, head, position % KV_BLOCK) + d * self.layer.dtype.bytes();
            let bytes = &self.blocks[position / KV_BLOCK][at..];
            f64::from(if self.layer.dtype == DType::F32 {
                f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
            } else {
                f32::from_le_bytes([0, 0, bytes[0], bytes[1]])
            })
        }

        fn want(&self, row: usize, head: usize) -> Vec<f64> {
            let q = &self.q[(row * KV_HEADS * self.heads + head) * self.dim..][..self.dim];
            let kv_head = head / self.heads;
            let scores: Vec<f64> = (0..self.first_position() + row + 1)
                .map(|p| {
                    let products = q.iter().enumerate().map(|(d, &q)| f64::from(q) * self.cached(0, kv_head, p, d));
                    products.sum::<f64>() / (self.dim as f64).sqrt()
                })
                .collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
            let sum: f64 = weights.iter().sum();
            let value = |d| weights.iter().enumerate().map(|(p, w)| w * self.cached(1, kv_head, p, d)).sum::<f64>();
            (0..self.dim).map(|d| value(d) / sum).collect()
        }
    }

    fn cases() -> Vec<Case> {
        vec![
            Case::new(64, 4, 1, 1, DType::F32, 0),
            Case::new(128, 3, 17, 17, DType::Bf16, 1),
            Case::new(256, 8, 3, 258, DType::Bf16, 6),
            Case::new(24, 1, 9, 530, DType::F32, 3),
            Case::new(96, 2, 20, 300, DType::Bf16, 0),
        ]
    }

    #[test]
    fn every_set_and_any_tile_give_the_same_bytes() {
        for case in cases() {
            let want = case.run(Isa::SCALAR, 1);
            for isa in Isa::available() {
                for tile in [1, 2, 5, 16, 17] {
                    assert!(same_bits(&case.run(isa, tile), &want), "{} {tile} rows of {}", isa.name(), case.positions);
                }
            }
        }
    }

    #[test]
    fn it_is_softmax_attention() {
        for case in cases() {
            let got = case.run(Isa::detect(), 4);
            for (i, got) in got.chunks(case.dim).enumerate() {
                let want = case.want(i / (KV_HEADS * case.heads), i % (KV_HEADS * case.heads));
                assert!(got.iter().zip(want).all(|(&g, w)| (f64::from(g) - w).abs() < 1e-5));
            }
        }
    }

    #[test]
    #[ignore = "a measurement"]
    fn rates() {
        for isa in Isa::available().skip(1) {
            for (rows, positions) in [(1, 4096), (32, 2048)] {
                let case = Case::new(256, 8, rows, positions, DType::Bf16, 0);
                let time = seconds(|| drop(case.run(isa, 32)));
                let bytes = positions as f64 * case.layer.position_bytes() as f64;
                let flops = 4.0 * (positions * rows * 2 * 8 * 256) as f64;
                println!(
                    "{:7} attention {rows:2} rows × {positions}: {:6.1} GB/s of KV, {:6.1} Gflop/s",
                    isa.name(),
                    bytes / time / 1e9,
                    flops / time / 1e9
                );
            }
        }
    }
}
