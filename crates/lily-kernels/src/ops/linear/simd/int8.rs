//! int8 activations: per group of 64 an exact int32 dot, then f32 in group order. Weights in groups of 32 come as groups
//! of 64 with the other half's codes zero, those in larger groups as several with the same scale.
//! A tile is 16 weight rows, so that a register's lanes are 16 outputs: nothing is summed across lanes, and a tile
//! unpacked once serves every activation row. Within a group the codes lie as `[16 runs][16 rows][4 codes]`, the runs in
//! the order of `quantize_rows::place`.

use std::ops::Range;

use crate::cpu::columns::ColumnsMut;
use crate::cpu::isa::{Isa, multiversion};
use crate::cpu::lanes::{self, LANES, Lanes};
use crate::ops::linear::simd::{MatrixBytes, RowMap};
use crate::ops::quantize_rows::GROUP;
use crate::tensor::Format;

#[cfg(target_arch = "aarch64")]
mod neon;
mod tile; // sixteen weight rows, unpacked
#[cfg(target_arch = "x86_64")]
mod x86;

pub(super) use tile::scratch_bytes;
use tile::{CHUNK, HALF, TILES, Tile, prefetch4};

/// Codes that one activation load meets.
const RUN: usize = 4;

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

/// Activation rows that pass between two unpackings of a chunk.
const PASS: usize = 64;

/// Sums of one activation row with as many tiles as are at work.
type Sums = [[f32; LANES]; TILES];

/// What an instruction set does better than the portable code here.
pub(super) trait Int8: Lanes {
    /// Activation rows, up to 6, and tiles that pass at once: as many sums as the registers hold.
    const AT_ONCE: (usize, usize) = (2, 1);

    /// The exact int32 dots of `T` tiles' codes with `R` activation groups, as f32 (exact too: below 2²⁴). `WIDE`: codes
    /// may be above 15.
    #[inline(always)]
    fn dots<const R: usize, const T: usize, const WIDE: bool>(
        tiles: [&TileGroup; T],
        x: [&[i8; GROUP]; R],
    ) -> [[Self; T]; R] {
        x.map(|x| {
            tiles.map(|tile| {
                let mut dots = [0i32; LANES];
                for (rows, x) in tile.iter().zip(x.as_chunks::<RUN>().0) {
                    for (dot, w) in dots.iter_mut().zip(rows.as_chunks::<RUN>().0) {
                        *dot += w.iter().zip(x).map(|(&w, &x)| i32::from(w) * i32::from(x)).sum::<i32>();
                    }
                }
                Self::load(&dots.map(|d| d as f32))
            })
        })
    }

    /// Unpacks group `g` of 16 rows of 4-bit codes, `stride` bytes apart.
    #[inline(always)]
    fn unpack4(rows: &[u8], stride: usize, g: usize, tile: &mut TileGroup) {
        let (evens, odds) = tile.split_at_mut(GROUP / RUN / 2);
        for (c, row) in rows.chunks_exact(stride).enumerate() {
            let packed = &row[g * GROUP / 2..][..GROUP / 2];
            for ((even, odd), bytes) in evens.iter_mut().zip(&mut *odds).zip(packed.as_chunks::<RUN>().0) {
                even[c * RUN..][..RUN].copy_from_slice(&bytes.map(|byte| byte & 15));
                odd[c * RUN..][..RUN].copy_from_slice(&bytes.map(|byte| byte >> 4));
            }
        }
    }

    /// Unpacks group `g` of 16 rows of 8-bit codes, `stride` bytes apart.
    #[inline(always)]
    fn unpack8(rows: &[u8], stride: usize, g: usize, tile: &mut TileGroup) {
        for (c, row) in rows.chunks_exact(stride).enumerate() {
            tile::put_row(tile, c, 0, &row[g * GROUP..][..GROUP]);
        }
    }

    /// `dots` of one activation group with 4-bit codes straight from their rows.
    #[inline(always)]
    fn packed_dots4(rows: &[u8], stride: usize, g: usize, x: &[i8; GROUP]) -> Self {
        let mut tile = [[0; LANES * RUN]; GROUP / RUN];
        Self::unpack4(rows, stride, g, &mut tile);
        let [[dots]] = Self::dots::<1, 1, false>([&tile], [x]);
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
    let (sums, scratch) = scratch.split_at_mut(PASS * LANES * TILES);
    let sums: &mut [Sums] = sums.as_chunks_mut().0.as_chunks_mut().0;
    let mut tiles = Tile::pair(w, scratch);
    let (rows_at_once, tiles_at_once) = at_once(isa);
    for first in (0..rows.len()).step_by(PASS) {
        let count = PASS.min(rows.len() - first);
        let mut x_rows = [x.row(rows.input(first), groups); PASS];
        for (r, row) in x_rows[..count].iter_mut().enumerate() {
            *row = x.row(rows.input(first + r), groups);
        }
        let (x_rows, sums) = (&x_rows[..count], &mut sums[..count]);
        let mut column = columns.start;
        while column < columns.end {
            let wanted = if count == 1 { 1 } else { (columns.end - column).div_ceil(LANES).min(tiles_at_once) };
            let tiles = &mut tiles[..wanted];
            for tile in &mut *tiles {
                tile.aim(isa, w, column..columns.end);
                column += tile.kept.len();
            }
            match (&mut *tiles, &mut *sums, x_rows) {
                ([tile], [sums], [x]) if bits == 4 && !halves && tile.is_whole() => {
                    sums[0] = one_packed(isa, tile, *x);
                }
                (tiles, sums, x_rows) => pass(isa, rows_at_once, tiles, x_rows, sums),
            }
            let mut at = column - columns.start - tiles.iter().map(|tile| tile.kept.len()).sum::<usize>();
            for (t, tile) in tiles.iter().enumerate() {
                for (r, sums) in sums.iter().enumerate() {
                    copy(&sums[t], tile.kept.clone(), &mut out.row(rows.output(first + r))[at..]);
                }
                at += tile.kept.len();
            }
        }
    }
}

/// The lanes that are kept, to the start of `out`.
fn copy(sums: &[f32; LANES], kept: Range<usize>, out: &mut [f32]) {
    match out.first_chunk_mut() {
        // A copy of known size is no call.
        Some(whole) if kept.len() == LANES => *whole = *sums,
        _ => out[..kept.len()].copy_from_slice(&sums[kept]),
    }
}

/// Some activation rows with the tiles.
fn pass(isa: Isa, rows_at_once: usize, tiles: &mut [Tile], x: &[Row], sums: &mut [Sums]) {
    sums.fill([[0.0; LANES]; TILES]);
    let groups = tiles[0].scales.len();
    let blocks = x.len().div_ceil(rows_at_once);
    for first in (0..groups).step_by(CHUNK) {
        let groups = first..groups.min(first + CHUNK);
        for tile in &mut *tiles {
            tile.unpack(isa, groups.clone());
        }
        // Blocks of nearly equal size: a register that holds weights is better used by 5 + 5 rows than by 6 + 4.
        let mut done = 0;
        for block in 0..blocks {
            let count = (x.len() - done).div_ceil(blocks - block);
            let (x, sums) = (&x[done..][..count], &mut sums[done..][..count]);
            match count {
                1 => one(isa, tiles, groups.clone(), x, sums),
                2 => two(isa, tiles, groups.clone(), x, sums),
                3 => three(isa, tiles, groups.clone(), x, sums),
                4 => four(isa, tiles, groups.clone(), x, sums),
                5 => five(isa, tiles, groups.clone(), x, sums),
                _ => six(isa, tiles, groups.clone(), x, sums),
            }
            done += count;
        }
    }
}

// A tile's kernels are dispatched one by one: each is then small enough for the compiler to keep its sums in registers.
multiversion! {
    fn at_once() -> (usize, usize) = at_once_body;
    fn one_packed(tile: &Tile, x: Row) -> [f32; LANES] = one_packed_body;
    fn one(tiles: &[Tile], groups: Range<usize>, x: &[Row], sums: &mut [Sums]) = rows_body[1];
    fn two(tiles: &[Tile], groups: Range<usize>, x: &[Row], sums: &mut [Sums]) = rows_body[2];
    fn three(tiles: &[Tile], groups: Range<usize>, x: &[Row], sums: &mut [Sums]) = rows_body[3];
    fn four(tiles: &[Tile], groups: Range<usize>, x: &[Row], sums: &mut [Sums]) = rows_body[4];
    fn five(tiles: &[Tile], groups: Range<usize>, x: &[Row], sums: &mut [Sums]) = rows_body[5];
    fn six(tiles: &[Tile], groups: Range<usize>, x: &[Row], sums: &mut [Sums]) = rows_body[6];
}

#[inline(always)]
const fn at_once_body<V: Int8>() -> (usize, usize) {
    V::AT_ONCE
}

/// Adds the products of some groups of `R` activation rows with the tiles to their sums.
#[inline(always)]
fn rows_body<V: Int8, const R: usize>(tiles: &[Tile], groups: Range<usize>, x: &[Row], sums: &mut [Sums]) {
    // Kernels that the set does not use are not made.
    assert!(R <= V::AT_ONCE.0, "too many rows at once");
    let Some(x) = x.first_chunk() else { return };
    match tiles {
        [tile] => shapes_body::<V, R, 1>([tile], groups, x, sums),
        [a, b] if V::AT_ONCE.1 == TILES => shapes_body::<V, R, 2>([a, b], groups, x, sums),
        _ => panic!("too many tiles at once"),
    }
}

/// What is known of the tiles becomes constant.
#[inline(always)]
fn shapes_body<V: Int8, const R: usize, const T: usize>(
    tiles: [&Tile; T],
    groups: Range<usize>,
    x: &[Row; R],
    sums: &mut [Sums],
) {
    match (tiles[0].wide(), tiles[0].halves) {
        (false, false) => tiles_body::<V, R, T, false, false>(tiles, groups, x, sums),
        (false, true) => tiles_body::<V, R, T, false, true>(tiles, groups, x, sums),
        (true, false) => tiles_body::<V, R, T, true, false>(tiles, groups, x, sums),
        (true, true) => tiles_body::<V, R, T, true, true>(tiles, groups, x, sums),
    }
}

#[inline(always)]
fn tiles_body<V: Int8, const R: usize, const T: usize, const WIDE: bool, const HALVES: bool>(
    tiles: [&Tile; T],
    groups: Range<usize>,
    x: &[Row; R],
    sums: &mut [Sums],
) {
    let mut totals = [[V::splat(0.0); T]; R];
    for r in 0..R {
        for t in 0..T {
            totals[r][t] = V::load(&sums[r][t]);
        }
    }
    for (i, g) in groups.enumerate() {
        let at = if HALVES { g / 2 } else { g };
        let (mut codes, mut groups) = ([&x[0].codes[at]; R], [&tiles[0].codes[i]; T]);
        for r in 0..R {
            codes[r] = &x[r].codes[at];
        }
        for t in 0..T {
            groups[t] = &tiles[t].codes[i];
        }
        let dots = V::dots::<R, T, WIDE>(groups, codes);
        for r in 0..R {
            let x_scale = x[r].scales[at];
            let x_sum = if HALVES { x_scale * half_sum(codes[r], g % 2) } else { x[r].sums[at] };
            for t in 0..T {
                let affine = (V::load(&tiles[t].scales[g]), V::load(&tiles[t].biases[g]));
                totals[r][t] = add_group(totals[r][t], affine, dots[r][t], (x_scale, x_sum));
            }
        }
    }
    for r in 0..R {
        for t in 0..T {
            totals[r][t].store(&mut sums[r][t]);
        }
    }
}

/// One activation row with 16 rows of 4-bit codes, straight from their bytes.
#[inline(always)]
fn one_packed_body<V: Int8>(tile: &Tile, x: Row) -> [f32; LANES] {
    let mut total = V::splat(0.0);
    for (g, codes) in x.codes.iter().enumerate() {
        prefetch4::<V>(&tile.packed, g);
        let dots = V::packed_dots4(tile.packed.rows, tile.packed.stride, g, codes);
        let affine = (V::load(&tile.scales[g]), V::load(&tile.biases[g]));
        total = add_group(total, affine, dots, (x.scales[g], x.sums[g]));
    }
    let mut sums = [0.0; LANES];
    total.store(&mut sums);
    sums
}

/// Σ of the codes of half a group's inputs; exact.
#[inline(always)]
fn half_sum(codes: &[i8; GROUP], half: usize) -> f32 {
    let (evens, odds) = codes.split_at(HALF);
    let pairs = evens.iter().zip(odds).skip(half * HALF / 2).take(HALF / 2);
    pairs.map(|(&even, &odd)| i32::from(even) + i32::from(odd)).sum::<i32>() as f32
}

/// `sum += (scale · x_scale) · dot; sum += bias · x_sum` of one group.
#[inline(always)]
fn add_group<V: Lanes>(sum: V, (scale, bias): (V, V), dots: V, (x_scale, x_sum): (f32, f32)) -> V {
    sum.fused(scale.mul(V::splat(x_scale)), dots).fused(bias, V::splat(x_sum))
}
