//! int8 activations: per group of 64 an exact int32 dot, then f32 in group order. Weights in groups of 32 come as groups
//! of 64 with the other half's codes zero, those in larger groups as several with the same scale.
//! A tile is 16 weight rows, so that a register's lanes are 16 outputs: nothing is summed across lanes, and a tile
//! unpacked once serves every activation row. Within a group the codes lie as `[8 runs][16 rows][8 codes]`.

use std::ops::Range;

use crate::cpu::columns::ColumnsMut;
use crate::cpu::isa::{Isa, multiversion};
use crate::cpu::lanes::{self, LANES, Lanes};
use crate::ops::linear::simd::decode;
use crate::ops::linear::simd::{MatrixBytes, RowMap, float_at};
use crate::ops::quantize_rows::GROUP;
use crate::tensor::{DType, Format};

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;

/// Codes that one activation load meets.
const RUN: usize = 8;

/// A group of a tile, unpacked to bytes.
type TileGroup = [[u8; LANES * RUN]; GROUP / RUN];

/// Quantized rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Activations<'a> {
    pub codes: &'a [i8],
    pub scales: &'a [f32],
    pub sums: &'a [f32],
}

/// One quantized row.
#[derive(Clone, Copy)]
struct Row<'a> {
    codes: &'a [[i8; GROUP]],
    scales: &'a [f32],
    sums: &'a [f32],
}

impl<'a> Activations<'a> {
    #[inline(always)]
    fn row(&self, row: usize, groups: usize) -> Row<'a> {
        Row {
            codes: &self.codes.as_chunks().0[row * groups..][..groups],
            scales: &self.scales[row * groups..][..groups],
            sums: &self.sums[row * groups..][..groups],
        }
    }
}

/// Sixteen weight rows, unpacked a chunk of groups at a time.
struct Tile<'a> {
    /// `[up to CHUNK]`.
    codes: &'a mut [TileGroup],
    /// `[groups, 16]`.
    scales: &'a mut [[f32; LANES]],
    /// `[groups, 16]`.
    biases: &'a mut [[f32; LANES]],
    /// Codes may be above 15.
    wide: bool,
    /// A group holds 32 codes, the even ones in the first half.
    halves: bool,
}

/// Groups unpacked at a time: 16 KB of codes, which stay in the first-level cache while the rows pass.
const CHUNK: usize = 16;

/// The smaller group.
const HALF: usize = GROUP / 2;

const CACHE_LINE: usize = 64;

/// Bytes from a tile to what is fetched meanwhile: at least the next tile, and far enough for memory to answer.
const AHEAD: usize = 16 << 10;

/// Cache lines of one group of a tile of 4-bit codes.
const TILE_LINES: usize = LANES * GROUP / 2 / CACHE_LINE;

/// Activation rows that pass between two unpackings of a chunk.
const PASS: usize = 64;

/// What an instruction set does better than the portable code here.
pub(super) trait Int8: Lanes {
    /// Activation rows that share a load of the tile: 2 or 4, what the registers hold.
    const ROWS: usize = 2;

    /// The exact int32 dots of 16 rows' codes with `R` activation groups, as f32 (exact too: below 2²⁴). `WIDE`: codes
    /// may be above 15.
    #[inline(always)]
    fn tile_dots<const R: usize, const WIDE: bool>(tile: &TileGroup, x: [&[i8; GROUP]; R]) -> [Self; R] {
        x.map(|x| {
            let mut dots = [0i32; LANES];
            for (rows, x) in tile.iter().zip(x.as_chunks::<RUN>().0) {
                for (dot, w) in dots.iter_mut().zip(rows.as_chunks::<RUN>().0) {
                    *dot += w.iter().zip(x).map(|(&w, &x)| i32::from(w) * i32::from(x)).sum::<i32>();
                }
            }
            Self::load(&dots.map(|d| d as f32))
        })
    }

    /// Unpacks group `g` of 16 rows of 4-bit codes, `stride` bytes apart.
    #[inline(always)]
    fn unpack4(rows: &[u8], stride: usize, g: usize, tile: &mut TileGroup) {
        for (c, row) in rows.chunks_exact(stride).enumerate() {
            let packed = &row[g * GROUP / 2..][..GROUP / 2];
            for (run, bytes) in tile.iter_mut().zip(packed.as_chunks::<{ RUN / 2 }>().0) {
                for (codes, byte) in run[c * RUN..][..RUN].as_chunks_mut::<2>().0.iter_mut().zip(bytes) {
                    *codes = [byte & 15, byte >> 4];
                }
            }
        }
    }

    /// `tile_dots` of one activation group with 4-bit codes straight from their rows.
    #[inline(always)]
    fn packed_dots4(rows: &[u8], stride: usize, g: usize, x: &[i8; GROUP]) -> Self {
        let mut tile = [[0; LANES * RUN]; GROUP / RUN];
        Self::unpack4(rows, stride, g, &mut tile);
        let [dots] = Self::tile_dots::<1, false>(&tile, [x]);
        dots
    }

    /// Asks for the cache line that a slice starts in.
    #[inline(always)]
    fn prefetch(_bytes: &[u8]) {}

    /// bf16 `[16, groups]` to f32 `[groups, 16]`, as many groups as the set has a fast way for; returns how many.
    #[inline(always)]
    fn transpose_bf16(_bytes: &[u8], _out: &mut [[f32; LANES]]) -> usize {
        0
    }
}

impl Int8 for lanes::Scalar {}

/// Bytes of scratch for K inputs: a tile's codes, scales and biases, and sums.
pub(super) const fn scratch_bytes(cols: usize) -> usize {
    LANES * (CHUNK * GROUP + 2 * 4 * cols.div_ceil(HALF) + 4 * PASS)
}

/// Every row of `rows` with columns `columns` of the matrix.
pub(super) fn matmul(
    isa: Isa,
    w: &MatrixBytes,
    x: &Activations,
    rows: &RowMap,
    columns: Range<usize>,
    scratch: &mut [f32],
    out: &mut ColumnsMut,
) {
    let Format::Affine { bits, group, .. } = w.format else {
        return;
    };
    let groups = w.cols / GROUP;
    let halves = group as usize == HALF;
    let (sums, scratch) = scratch.split_at_mut(PASS * LANES);
    let sums = sums.as_chunks_mut().0;
    let mut tile = Tile::new(w.cols, bits > 4, halves, scratch);
    let mut column = columns.start;
    while column < columns.end {
        // The last tile reaches back, so that it too has 16 rows if the matrix has; what it computes again is dropped.
        let first = column.min(w.rows.saturating_sub(LANES));
        let end = w.rows.min(first + LANES);
        let kept = column - first..end.min(columns.end) - first;
        let at = column - columns.start..column - columns.start + kept.len();
        let (start, stop) = (first * w.row_bytes(), end * w.row_bytes());
        let ahead = w.weight.get((start + AHEAD).max(stop)..).unwrap_or_default();
        let packed = Packed { rows: &w.weight[start..stop], ahead, stride: w.row_bytes(), bits };
        load_affine(isa, &mut tile, w, first..end);
        for i in (0..rows.len()).step_by(PASS) {
            let sums = &mut sums[..PASS.min(rows.len() - i)];
            if sums.len() == 1 && bits == 4 && !halves && end - first == LANES {
                sums[0] = one_packed(isa, &tile, &packed, x.row(rows.input(i), groups));
            } else {
                pass(isa, &mut tile, &packed, |r| x.row(rows.input(i + r), groups), sums);
            }
            for (r, sums) in sums.iter().enumerate() {
                out.row(rows.output(i + r))[at.clone()].copy_from_slice(&sums[kept.clone()]);
            }
        }
        column += kept.len();
    }
}

/// Up to 16 matrix rows as they are stored.
struct Packed<'a> {
    rows: &'a [u8],
    /// What will be wanted when these are done.
    ahead: &'a [u8],
    /// Bytes of a row.
    stride: usize,
    bits: u8,
}

/// Some activation rows with one tile.
fn pass<'a>(isa: Isa, tile: &mut Tile, packed: &Packed, row: impl Fn(usize) -> Row<'a>, sums: &mut [[f32; LANES]]) {
    sums.fill([0.0; LANES]);
    let at_once = rows_at_once(isa);
    for first in (0..tile.scales.len()).step_by(CHUNK) {
        let count = CHUNK.min(tile.scales.len() - first);
        if tile.halves {
            unpack_halves(packed, first, &mut tile.codes[..count]);
        } else if packed.bits == 4 && packed.rows.len() == LANES * packed.stride {
            unpack4(isa, packed, first, &mut tile.codes[..count]);
        } else {
            unpack(packed, first, &mut tile.codes[..count]);
        }
        let groups = first..first + count;
        let fours = if at_once == 4 { sums.len() / 4 } else { 0 };
        let (by_four, rest) = sums.split_at_mut(fours * 4);
        for (i, sums) in by_four.as_chunks_mut().0.iter_mut().enumerate() {
            four(isa, tile, groups.clone(), [0, 1, 2, 3].map(|r| row(i * 4 + r)), sums);
        }
        let (by_two, last) = rest.as_chunks_mut();
        let twos = by_two.len();
        for (i, sums) in by_two.iter_mut().enumerate() {
            two(isa, tile, groups.clone(), [0, 1].map(|r| row(fours * 4 + i * 2 + r)), sums);
        }
        if let [sums] = last.as_chunks_mut().0 {
            one(isa, tile, groups.clone(), [row(fours * 4 + twos * 2)], sums);
        }
    }
}

// A tile's kernels are dispatched one by one: each is then small enough for the compiler to keep its sums in registers.
multiversion! {
    fn rows_at_once() -> usize = rows_at_once_body;
    fn load_affine(tile: &mut Tile, w: &MatrixBytes, rows: Range<usize>) = load_affine_body;
    fn unpack4(packed: &Packed, first: usize, codes: &mut [TileGroup]) = unpack4_body;
    fn one_packed(tile: &Tile, packed: &Packed, x: Row) -> [f32; LANES] = one_packed_body;
    fn one(tile: &Tile, groups: Range<usize>, x: [Row; 1], sums: &mut [[f32; LANES]; 1]) = rows_body[1];
    fn two(tile: &Tile, groups: Range<usize>, x: [Row; 2], sums: &mut [[f32; LANES]; 2]) = rows_body[2];
    fn four(tile: &Tile, groups: Range<usize>, x: [Row; 4], sums: &mut [[f32; LANES]; 4]) = rows_body[4];
}

#[inline(always)]
const fn rows_at_once_body<V: Int8>() -> usize {
    V::ROWS
}

impl<'a> Tile<'a> {
    fn new(cols: usize, wide: bool, halves: bool, scratch: &'a mut [f32]) -> Self {
        let groups = cols / if halves { HALF } else { GROUP };
        let (affine, codes) = scratch.split_at_mut(2 * groups * LANES);
        let (scales, biases) = affine.as_chunks_mut().0.split_at_mut(groups);
        let codes: &mut [u8] = bytemuck::cast_slice_mut(codes);
        let codes = &mut codes.as_chunks_mut().0.as_chunks_mut().0[..groups.min(CHUNK)];
        Self { codes, scales, biases, wide, halves }
    }
}

/// Scales and biases of up to 16 matrix rows.
#[inline(always)]
fn load_affine_body<V: Int8>(tile: &mut Tile, w: &MatrixBytes, rows: Range<usize>) {
    let Format::Affine { scale, group, .. } = w.format else {
        return;
    };
    let groups = w.cols / group as usize;
    let repeat = tile.scales.len() / groups;
    let elements = rows.start * groups * scale.bytes()..rows.end * groups * scale.bytes();
    for (bytes, all) in [(w.scales, &mut *tile.scales), (w.biases, &mut *tile.biases)] {
        for line in (elements.end..elements.end + elements.len()).step_by(CACHE_LINE) {
            V::prefetch(bytes.get(line..).unwrap_or_default());
        }
        let (bytes, out) = (&bytes[elements.clone()], &mut all[..groups]);
        let done = if scale == DType::Bf16 && rows.len() == LANES { V::transpose_bf16(bytes, out) } else { 0 };
        for (g, out) in out.iter_mut().enumerate().skip(done) {
            for (c, out) in out[..rows.len()].iter_mut().enumerate() {
                *out = float_at(bytes, scale, c * groups + g);
            }
        }
        if repeat > 1 {
            for g in (0..all.len()).rev() {
                all[g] = all[g / repeat];
            }
        }
    }
}

/// Codes of 16 matrix rows of 4 bits, from group `first` on.
#[inline(always)]
fn unpack4_body<V: Int8>(packed: &Packed, first: usize, codes: &mut [TileGroup]) {
    for (g, codes) in codes.iter_mut().enumerate() {
        prefetch4::<V>(packed, first + g);
        V::unpack4(packed.rows, packed.stride, first + g, codes);
    }
}

/// Asks for as many bytes as group `g` of a tile has, further on. The rows of a tile are read side by side, in more streams
/// than a processor foresees.
#[inline(always)]
fn prefetch4<V: Int8>(packed: &Packed, g: usize) {
    for line in g * TILE_LINES..(g + 1) * TILE_LINES {
        V::prefetch(packed.ahead.get(line * CACHE_LINE..).unwrap_or_default());
    }
}

/// Codes of up to 16 matrix rows of any width, from group `first` on.
fn unpack(packed: &Packed, first: usize, codes: &mut [TileGroup]) {
    for (g, tile) in codes.iter_mut().enumerate() {
        let start = (first + g) * GROUP;
        for (c, row) in packed.rows.chunks_exact(packed.stride).enumerate() {
            let mut codes = [0; GROUP];
            decode::unpack(row, packed.bits, start, &mut codes);
            for (run, codes) in tile.iter_mut().zip(codes.as_chunks::<RUN>().0) {
                run[c * RUN..][..RUN].copy_from_slice(codes);
            }
        }
    }
}

/// The same of groups of 32.
fn unpack_halves(packed: &Packed, first: usize, codes: &mut [TileGroup]) {
    for (g, tile) in codes.iter_mut().enumerate() {
        let g = first + g;
        *tile = [[0; LANES * RUN]; GROUP / RUN];
        let half = &mut tile[g % 2 * (HALF / RUN)..][..HALF / RUN];
        for (c, row) in packed.rows.chunks_exact(packed.stride).enumerate() {
            let mut codes = [0; HALF];
            decode::unpack(row, packed.bits, g * HALF, &mut codes);
            for (run, codes) in half.iter_mut().zip(codes.as_chunks::<RUN>().0) {
                run[c * RUN..][..RUN].copy_from_slice(codes);
            }
        }
    }
}

/// Adds the products of some groups of `R` activation rows with one tile to their sums.
#[inline(always)]
fn rows_body<V: Int8, const R: usize>(tile: &Tile, groups: Range<usize>, x: [Row; R], sums: &mut [[f32; LANES]; R]) {
    if tile.wide {
        rows_of_width::<V, R, true>(tile, groups, x, sums);
    } else {
        rows_of_width::<V, R, false>(tile, groups, x, sums);
    }
}

#[inline(always)]
fn rows_of_width<V: Int8, const R: usize, const WIDE: bool>(
    tile: &Tile,
    groups: Range<usize>,
    x: [Row; R],
    sums: &mut [[f32; LANES]; R],
) {
    let mut totals = [V::splat(0.0); R];
    for (total, sums) in totals.iter_mut().zip(&*sums) {
        *total = V::load(sums);
    }
    for (g, tile_codes) in groups.zip(&*tile.codes) {
        let at = if tile.halves { g / 2 } else { g };
        let mut codes = [&x[0].codes[at]; R];
        let (mut scales, mut sums) = ([0.0; R], [0.0; R]);
        for r in 0..R {
            codes[r] = &x[r].codes[at];
            scales[r] = x[r].scales[at];
            sums[r] = if tile.halves { x[r].scales[at] * half_sum(codes[r], g % 2) } else { x[r].sums[at] };
        }
        let dots = V::tile_dots::<R, WIDE>(tile_codes, codes);
        add_group(&mut totals, (&tile.scales[g], &tile.biases[g]), dots, scales, sums);
    }
    for (total, sums) in totals.iter().zip(sums) {
        total.store(sums);
    }
}

/// One activation row with 16 rows of 4-bit codes, straight from their bytes.
#[inline(always)]
fn one_packed_body<V: Int8>(tile: &Tile, packed: &Packed, x: Row) -> [f32; LANES] {
    let mut total = [V::splat(0.0)];
    for (g, codes) in x.codes.iter().enumerate() {
        prefetch4::<V>(packed, g);
        let dots = [V::packed_dots4(packed.rows, packed.stride, g, codes)];
        add_group(&mut total, (&tile.scales[g], &tile.biases[g]), dots, [x.scales[g]], [x.sums[g]]);
    }
    let mut sums = [0.0; LANES];
    total[0].store(&mut sums);
    sums
}

/// Σ of half a group's codes; exact.
#[inline(always)]
fn half_sum(codes: &[i8; GROUP], half: usize) -> f32 {
    codes[half * HALF..][..HALF].iter().map(|&code| i32::from(code)).sum::<i32>() as f32
}

/// `sum += (scale · x_scale) · dot; sum += bias · x_sum` of one group, `affine` being its scales and biases.
#[inline(always)]
fn add_group<V: Lanes, const R: usize>(
    sums: &mut [V; R],
    affine: (&[f32; LANES], &[f32; LANES]),
    dots: [V; R],
    x_scales: [f32; R],
    x_sums: [f32; R],
) {
    let (scale, bias) = (V::load(affine.0), V::load(affine.1));
    for r in 0..R {
        sums[r] = sums[r].add_product(scale.mul(V::splat(x_scales[r])), dots[r]);
        sums[r] = sums[r].add_product(bias, V::splat(x_sums[r]));
    }
}
