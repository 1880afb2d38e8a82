//! int8 activations: per group of 64 an exact int32 dot, then f32 in group order.
//! A tile is 16 weight rows, so that a register's lanes are 16 outputs: nothing is summed across lanes, and a tile
//! unpacked once serves every activation row. Within a group the codes lie as `[8 runs][16 rows][8 codes]`.

use std::ops::Range;

use crate::cpu::columns::ColumnsMut;
use crate::cpu::isa::multiversion;
use crate::cpu::lanes::{self, LANES, Lanes};
use crate::ops::linear::simd::decode::code_at;
use crate::ops::linear::simd::{MatrixBytes, RowMap, float_at};
use crate::ops::quantize_rows::GROUP;
use crate::tensor::{DType, Format};

#[cfg(target_arch = "x86_64")]
mod x86;

/// Codes that one activation load meets.
const RUN: usize = 8;

/// A group of a tile, unpacked to bytes.
type TileGroup = [[u8; LANES * RUN]; GROUP / RUN];

/// Bytes of a group's 4-bit codes.
const PACKED: usize = GROUP / 2;

/// Activation rows that share a load of the tile.
const BLOCK: usize = 4;

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

/// Sixteen weight rows.
struct Tile<'a> {
    /// `[groups]`: unpacked codes.
    codes: &'a mut [TileGroup],
    /// `[groups, 16]`.
    scales: &'a mut [[f32; LANES]],
    /// `[groups, 16]`.
    biases: &'a mut [[f32; LANES]],
}

/// What an instruction set does better than the portable code here.
pub(super) trait Int8: Lanes {
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
            let packed = &row[g * PACKED..][..PACKED];
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

    /// bf16 `[16, groups]` to f32 `[groups, 16]`, as many groups as the set has a fast way for; returns how many.
    #[inline(always)]
    fn transpose_bf16(_bytes: &[u8], _out: &mut [[f32; LANES]]) -> usize {
        0
    }
}

impl Int8 for lanes::Scalar {}
#[cfg(target_arch = "aarch64")]
impl Int8 for lanes::Neon {}

/// Bytes of scratch for K inputs: a tile's codes, scales and biases.
pub(super) const fn scratch_bytes(cols: usize) -> usize {
    LANES * (cols + 2 * 4 * cols.div_ceil(GROUP))
}

multiversion! {
    pub(super) fn matmul(
        w: &MatrixBytes,
        x: &Activations,
        rows: &RowMap,
        columns: Range<usize>,
        scratch: &mut [f32],
        out: &mut ColumnsMut,
    ) = matmul_body;
}

#[inline(always)]
fn matmul_body<V: Int8>(
    w: &MatrixBytes,
    x: &Activations,
    rows: &RowMap,
    columns: Range<usize>,
    scratch: &mut [f32],
    out: &mut ColumnsMut,
) {
    let Format::Affine { bits, .. } = w.format else {
        return;
    };
    let mut tile = Tile::new(w.cols / GROUP, scratch);
    let mut column = columns.start;
    while column < columns.end {
        // The last tile reaches back, so that it too has 16 rows if the matrix has; what it computes again is dropped.
        let first = column.min(w.rows.saturating_sub(LANES));
        let end = w.rows.min(first + LANES);
        let kept = column - first..end.min(columns.end) - first;
        let target = Target { at: column - columns.start, kept: kept.clone() };
        tile.load_affine::<V>(w, first..end);
        let packed = &w.weight[first * w.row_bytes()..end * w.row_bytes()];
        if rows.len() == 1 && bits == 4 && end - first == LANES {
            let row = x.row(rows.input(0), tile.scales.len());
            let [acc] =
                accumulate::<V, 1>(&tile, [row], |g| [V::packed_dots4(packed, w.row_bytes(), g, &row.codes[g])]);
            target.write(acc, out.row(rows.output(0)));
        } else if bits <= 4 {
            tile.unpack::<V>(packed, w.row_bytes(), bits);
            every_row::<V, false>(&tile, x, rows, &target, out);
        } else {
            tile.unpack::<V>(packed, w.row_bytes(), bits);
            every_row::<V, true>(&tile, x, rows, &target, out);
        }
        column += kept.len();
    }
}

/// Which results of a tile are wanted and where they go.
struct Target {
    /// First column of the output view.
    at: usize,
    /// Lanes of the tile.
    kept: Range<usize>,
}

impl Target {
    #[inline(always)]
    fn write<V: Lanes>(&self, sums: V, row: &mut [f32]) {
        let mut lanes = [0.0; LANES];
        sums.store(&mut lanes);
        row[self.at..][..self.kept.len()].copy_from_slice(&lanes[self.kept.clone()]);
    }
}

impl<'a> Tile<'a> {
    fn new(groups: usize, scratch: &'a mut [f32]) -> Self {
        let (affine, codes) = scratch.split_at_mut(2 * groups * LANES);
        let (scales, biases) = affine.as_chunks_mut().0.split_at_mut(groups);
        let codes: &mut [u8] = bytemuck::cast_slice_mut(codes);
        let codes = &mut codes.as_chunks_mut().0.as_chunks_mut().0[..groups];
        Self { codes, scales, biases }
    }

    /// Scales and biases of some matrix rows.
    #[inline(always)]
    fn load_affine<V: Int8>(&mut self, w: &MatrixBytes, rows: Range<usize>) {
        let Format::Affine { scale, .. } = w.format else {
            return;
        };
        let groups = self.scales.len();
        let elements = rows.start * groups * scale.bytes()..rows.end * groups * scale.bytes();
        for (bytes, out) in [(w.scales, &mut *self.scales), (w.biases, &mut *self.biases)] {
            let bytes = &bytes[elements.clone()];
            let done = if scale == DType::Bf16 && rows.len() == LANES { V::transpose_bf16(bytes, out) } else { 0 };
            for (g, out) in out.iter_mut().enumerate().skip(done) {
                for (c, out) in out[..rows.len()].iter_mut().enumerate() {
                    *out = float_at(bytes, scale, c * groups + g);
                }
            }
        }
    }

    /// Codes of some matrix rows.
    #[inline(always)]
    fn unpack<V: Int8>(&mut self, rows: &[u8], stride: usize, bits: u8) {
        let whole = rows.len() == LANES * stride;
        for (g, tile) in self.codes.iter_mut().enumerate() {
            if bits == 4 && whole {
                V::unpack4(rows, stride, g, tile);
                continue;
            }
            for (c, row) in rows.chunks_exact(stride).enumerate() {
                for (run, codes) in tile.iter_mut().enumerate() {
                    let codes = &mut codes[c * RUN..][..RUN];
                    let first = g * GROUP + run * RUN;
                    if bits == 8 {
                        codes.copy_from_slice(&row[first..first + RUN]);
                        continue;
                    }
                    for (i, code) in codes.iter_mut().enumerate() {
                        *code = code_at(row, bits, first + i);
                    }
                }
            }
        }
    }
}

/// Every activation row with one tile.
#[inline(always)]
fn every_row<V: Int8, const WIDE: bool>(
    tile: &Tile,
    x: &Activations,
    rows: &RowMap,
    target: &Target,
    out: &mut ColumnsMut,
) {
    let whole = rows.len() / BLOCK * BLOCK;
    for i in (0..whole).step_by(BLOCK) {
        some_rows::<V, BLOCK, WIDE>(tile, x, rows, i, target, out);
    }
    for i in whole..rows.len() {
        some_rows::<V, 1, WIDE>(tile, x, rows, i, target, out);
    }
}

/// `R` activation rows, from computed row `i` on, with one tile.
#[inline(always)]
fn some_rows<V: Int8, const R: usize, const WIDE: bool>(
    tile: &Tile,
    x: &Activations,
    rows: &RowMap,
    i: usize,
    target: &Target,
    out: &mut ColumnsMut,
) {
    let inputs: [Row; R] = std::array::from_fn(|r| x.row(rows.input(i + r), tile.scales.len()));
    let sums =
        accumulate::<V, R>(tile, inputs, |g| V::tile_dots::<R, WIDE>(&tile.codes[g], inputs.map(|x| &x.codes[g])));
    for (r, sums) in sums.into_iter().enumerate() {
        target.write(sums, out.row(rows.output(i + r)));
    }
}

/// Over the groups in order: `sum += (scale · x_scale) · dot; sum += bias · x_sum`.
#[inline(always)]
fn accumulate<V: Lanes, const R: usize>(tile: &Tile, x: [Row; R], dots: impl Fn(usize) -> [V; R]) -> [V; R] {
    let mut sums = [V::splat(0.0); R];
    for (g, (scale, bias)) in tile.scales.iter().zip(&*tile.biases).enumerate() {
        let (scale, bias) = (V::load(scale), V::load(bias));
        for ((sum, dot), x) in sums.iter_mut().zip(dots(g)).zip(&x) {
            *sum = sum.add_product(scale.mul(V::splat(x.scales[g])), dot);
            *sum = sum.add_product(bias, V::splat(x.sums[g]));
        }
    }
    sums
}
