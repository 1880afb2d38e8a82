//! int8 activations: per group of 64 an exact int32 dot, then f32 in group order.
//! A tile is 16 weight rows, so that a register's lanes are 16 outputs: nothing is summed across lanes, and a tile
//! unpacked once serves every activation row. Within a group the codes lie as `[8 runs][16 rows][8 codes]`.

use std::ops::Range;

use crate::cpu::columns::ColumnsMut;
use crate::cpu::isa::{Isa, multiversion};
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
    /// Activation rows that share a load of the tile: 2 or 4, what the registers hold.
    const ROWS: usize = 2;

    /// The exact int32 dots of 16 rows' codes with `R` activation groups, as f32 (exact too: below 2²⁴). `WIDE`: codes
    /// may be above 15.
    #[inline(always)]
    fn tile_dots<const R: usize, const WIDE: bool>(
        tile: &TileGroup,
        x: [&[i8; GROUP]; R],
    ) -> [Self; R] {
        x.map(|x| {
            let mut dots = [0i32; LANES];
            for (rows, x) in tile.iter().zip(x.as_chunks::<RUN>().0) {
                for (dot, w) in dots.iter_mut().zip(rows.as_chunks::<RUN>().0) {
                    *dot += w
                        .iter()
                        .zip(x)
                        .map(|(&w, &x)| i32::from(w) * i32::from(x))
                        .sum::<i32>();
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
                for (codes, byte) in run[c * RUN..][..RUN]
                    .as_chunks_mut::<2>()
                    .0
                    .iter_mut()
                    .zip(bytes)
                {
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
    let Format::Affine { bits, .. } = w.format else {
        return;
    };
    let groups = w.cols / GROUP;
    let mut tile = Tile::new(groups, scratch);
    let mut column = columns.start;
    while column < columns.end {
        // The last tile reaches back, so that it too has 16 rows if the matrix has; what it computes again is dropped.
        let first = column.min(w.rows.saturating_sub(LANES));
        let end = w.rows.min(first + LANES);
        let kept = column - first..end.min(columns.end) - first;
        let target = Target {
            at: column - columns.start,
            kept: kept.clone(),
        };
        load_affine(isa, &mut tile, w, first..end);
        let packed = &w.weight[first * w.row_bytes()..end * w.row_bytes()];
        if rows.len() == 1 && bits == 4 && end - first == LANES {
            let row = x.row(rows.input(0), groups);
            target.write(
                &one_packed(isa, &tile, packed, w.row_bytes(), row),
                out.row(rows.output(0)),
            );
        } else {
            unpack(isa, &mut tile, packed, w.row_bytes(), bits);
            every_row(isa, &tile, bits > 4, x, rows, |i, sums| {
                target.write(sums, out.row(rows.output(i)))
            });
        }
        column += kept.len();
    }
}

/// Every activation row with one tile; hands on each computed row's 16 results.
fn every_row(
    isa: Isa,
    tile: &Tile,
    wide: bool,
    x: &Activations,
    rows: &RowMap,
    mut write: impl FnMut(usize, &[f32; LANES]),
) {
    let row = |i: usize| x.row(rows.input(i), tile.scales.len());
    let mut i = 0;
    while i < rows.len() {
        let done = match rows.len() - i {
            4.. if rows_at_once(isa) == 4 => {
                let x = [row(i), row(i + 1), row(i + 2), row(i + 3)];
                let sums = if wide {
                    four_wide(isa, tile, x)
                } else {
                    four(isa, tile, x)
                };
                sums.iter()
                    .enumerate()
                    .for_each(|(r, sums)| write(i + r, sums));
                4
            }
            2.. => {
                let x = [row(i), row(i + 1)];
                let sums = if wide {
                    two_wide(isa, tile, x)
                } else {
                    two(isa, tile, x)
                };
                sums.iter()
                    .enumerate()
                    .for_each(|(r, sums)| write(i + r, sums));
                2
            }
            _ => {
                let [sums] = if wide {
                    one_wide(isa, tile, [row(i)])
                } else {
                    one(isa, tile, [row(i)])
                };
                write(i, &sums);
                1
            }
        };
        i += done;
    }
}

// A tile's kernels are dispatched one by one: each is then small enough for the compiler to keep its sums in registers.
multiversion! {
    fn rows_at_once() -> usize = rows_at_once_body;
    fn load_affine(tile: &mut Tile, w: &MatrixBytes, rows: Range<usize>) = load_affine_body;
    fn unpack(tile: &mut Tile, rows: &[u8], stride: usize, bits: u8) = unpack_body;
    fn one_packed(tile: &Tile, packed: &[u8], stride: usize, x: Row) -> [f32; LANES] = one_packed_body;
    fn one(tile: &Tile, x: [Row; 1]) -> [[f32; LANES]; 1] = rows_body[1, false];
    fn two(tile: &Tile, x: [Row; 2]) -> [[f32; LANES]; 2] = rows_body[2, false];
    fn four(tile: &Tile, x: [Row; 4]) -> [[f32; LANES]; 4] = rows_body[4, false];
    fn one_wide(tile: &Tile, x: [Row; 1]) -> [[f32; LANES]; 1] = rows_body[1, true];
    fn two_wide(tile: &Tile, x: [Row; 2]) -> [[f32; LANES]; 2] = rows_body[2, true];
    fn four_wide(tile: &Tile, x: [Row; 4]) -> [[f32; LANES]; 4] = rows_body[4, true];
}

#[inline(always)]
const fn rows_at_once_body<V: Int8>() -> usize {
    V::ROWS
}

/// Which results of a tile are wanted and where they go.
struct Target {
    /// First column of the output view.
    at: usize,
    /// Lanes of the tile.
    kept: Range<usize>,
}

impl Target {
    fn write(&self, sums: &[f32; LANES], row: &mut [f32]) {
        row[self.at..][..self.kept.len()].copy_from_slice(&sums[self.kept.clone()]);
    }
}

impl<'a> Tile<'a> {
    fn new(groups: usize, scratch: &'a mut [f32]) -> Self {
        let (affine, codes) = scratch.split_at_mut(2 * groups * LANES);
        let (scales, biases) = affine.as_chunks_mut().0.split_at_mut(groups);
        let codes: &mut [u8] = bytemuck::cast_slice_mut(codes);
        let codes = &mut codes.as_chunks_mut().0.as_chunks_mut().0[..groups];
        Self {
            codes,
            scales,
            biases,
        }
    }
}

/// Scales and biases of up to 16 matrix rows.
#[inline(always)]
fn load_affine_body<V: Int8>(tile: &mut Tile, w: &MatrixBytes, rows: Range<usize>) {
    let Format::Affine { scale, .. } = w.format else {
        return;
    };
    let groups = tile.scales.len();
    let elements = rows.start * groups * scale.bytes()..rows.end * groups * scale.bytes();
    for (bytes, out) in [(w.scales, &mut *tile.scales), (w.biases, &mut *tile.biases)] {
        let bytes = &bytes[elements.clone()];
        let done = if scale == DType::Bf16 && rows.len() == LANES {
            V::transpose_bf16(bytes, out)
        } else {
            0
        };
        for (g, out) in out.iter_mut().enumerate().skip(done) {
            for (c, out) in out[..rows.len()].iter_mut().enumerate() {
                *out = float_at(bytes, scale, c * groups + g);
            }
        }
    }
}

/// Codes of up to 16 matrix rows.
#[inline(always)]
fn unpack_body<V: Int8>(tile: &mut Tile, rows: &[u8], stride: usize, bits: u8) {
    for (g, tile) in tile.codes.iter_mut().enumerate() {
        match bits {
            4 if rows.len() == LANES * stride => V::unpack4(rows, stride, g, tile),
            8 => {
                for (c, row) in rows.chunks_exact(stride).enumerate() {
                    for (run, codes) in tile.iter_mut().zip(row[g * GROUP..].as_chunks::<RUN>().0) {
                        run[c * RUN..][..RUN].copy_from_slice(codes);
                    }
                }
            }
            _ => {
                for (c, row) in rows.chunks_exact(stride).enumerate() {
                    for i in 0..GROUP {
                        tile[i / RUN][c * RUN + i % RUN] = code_at(row, bits, g * GROUP + i);
                    }
                }
            }
        }
    }
}

/// `R` activation rows with one tile. `WIDE`: codes may be above 15.
#[inline(always)]
fn rows_body<V: Int8, const R: usize, const WIDE: bool>(
    tile: &Tile,
    x: [Row; R],
) -> [[f32; LANES]; R] {
    let mut sums = [V::splat(0.0); R];
    for (g, tile_codes) in tile.codes.iter().enumerate() {
        let mut codes = [&x[0].codes[g]; R];
        for r in 0..R {
            codes[r] = &x[r].codes[g];
        }
        add_group(
            &mut sums,
            tile,
            g,
            V::tile_dots::<R, WIDE>(tile_codes, codes),
            &x,
        );
    }
    to_arrays(sums)
}

/// One activation row with 16 rows of 4-bit codes, straight from their bytes.
#[inline(always)]
fn one_packed_body<V: Int8>(tile: &Tile, packed: &[u8], stride: usize, x: Row) -> [f32; LANES] {
    let mut sums = [V::splat(0.0)];
    for (g, codes) in x.codes.iter().enumerate() {
        add_group(
            &mut sums,
            tile,
            g,
            [V::packed_dots4(packed, stride, g, codes)],
            &[x],
        );
    }
    let [sums] = to_arrays(sums);
    sums
}

/// `sum += (scale · x_scale) · dot; sum += bias · x_sum` of group `g`.
#[inline(always)]
fn add_group<V: Lanes, const R: usize>(
    sums: &mut [V; R],
    tile: &Tile,
    g: usize,
    dots: [V; R],
    x: &[Row; R],
) {
    let (scale, bias) = (V::load(&tile.scales[g]), V::load(&tile.biases[g]));
    for r in 0..R {
        sums[r] = sums[r].add_product(scale.mul(V::splat(x[r].scales[g])), dots[r]);
        sums[r] = sums[r].add_product(bias, V::splat(x[r].sums[g]));
    }
}

#[inline(always)]
fn to_arrays<V: Lanes, const R: usize>(sums: [V; R]) -> [[f32; LANES]; R] {
    let mut out = [[0.0; LANES]; R];
    for (sums, out) in sums.iter().zip(&mut out) {
        sums.store(out);
    }
    out
}
