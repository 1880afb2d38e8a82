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
        (self.first_position + row + 1)
            .saturating_sub(block * KV_BLOCK)
            .min(KV_BLOCK)
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
    let mut work = Work {
        scores,
        values,
        merges,
        chunk,
    };
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
    let bytes =
        &bytes[layer.row_offset(which, tile.kv_head, first)..][..chunk.len() * layer.dtype.bytes()];
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
                // Keys past the row's own position are scored with the rest and dropped by `softmax`.
                let scores = &mut work.scores[(row * heads + head) * KV_BLOCK + first..][..CHUNK];
                let keys = work.chunk.chunks_exact(KEYS * dim);
                for (keys, scores) in keys.zip(scores.as_chunks_mut::<KEYS>().0) {
                    let keys = std::array::from_fn(|i| &keys[i * dim..][..dim]);
                    *scores = dots::<V, KEYS>(tile.query(row, head), keys).map(|s| s * scale);
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
    let max = runs
        .iter()
        .fold(V::splat(f32::NEG_INFINITY), |max, s| V::load(s).max(max))
        .max_lane();
    let mut sum = V::splat(0.0);
    for run in runs {
        let e = V::load(run).sub(V::splat(max)).exp();
        e.store(run);
        sum = sum.add(e);
    }
    let [old_max, old_sum, ..] = *merge;
    let new_max = if old_max > max { old_max } else { max };
    let mut factors = [0.0; LANES];
    V::load_head(&[old_max - new_max, max - new_max])
        .exp()
        .store(&mut factors);
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
        let mut sums: [V; SPAN] = std::array::from_fn(|i| V::load(&runs[i]));
        for (p, &weight) in weights.iter().enumerate() {
            let v = chunk[p * dim + span * SPAN * LANES..]
                .as_chunks::<LANES>()
                .0;
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
