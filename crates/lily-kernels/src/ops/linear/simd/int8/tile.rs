//! Sixteen weight rows: their codes unpacked a chunk of groups at a time, their scales and biases as f32.

use std::ops::Range;

use super::{Int8, PASS, RUN, TileGroup};
use crate::cpu::isa::{Isa, multiversion};
use crate::cpu::lanes::LANES;
use crate::ops::linear::simd::{MatrixBytes, decode, float_at};
use crate::ops::quantize_rows::{GROUP, place};
use crate::tensor::{DType, Format};

/// Tiles that may pass at once.
pub(super) const TILES: usize = 2;

/// Groups unpacked at a time: 16 KB of codes, which stay in the first-level cache while the rows pass.
pub(super) const CHUNK: usize = 16;

/// The smaller group.
pub(super) const HALF: usize = GROUP / 2;

const CACHE_LINE: usize = 64;

/// Bytes from a tile to what is fetched meanwhile: at least the next tile, and far enough for memory to answer.
const AHEAD: usize = 16 << 10;

/// Cache lines of one group of a tile of 4-bit codes.
const TILE_LINES: usize = LANES * GROUP / 2 / CACHE_LINE;

/// Bytes of scratch for K inputs: the codes, scales and biases of the tiles, and sums.
pub const fn scratch_bytes(cols: usize) -> usize {
    TILES * LANES * (CHUNK * GROUP + 2 * 4 * cols.div_ceil(HALF) + 4 * PASS)
}

/// Up to sixteen weight rows.
pub(super) struct Tile<'a> {
    /// `[up to CHUNK]`.
    pub codes: &'a mut [TileGroup],
    /// `[groups, 16]`.
    pub scales: &'a mut [[f32; LANES]],
    /// `[groups, 16]`.
    pub biases: &'a mut [[f32; LANES]],
    /// The rows as they are stored.
    pub packed: Packed<'a>,
    /// Which of its rows are wanted.
    pub kept: Range<usize>,
    /// A group holds the codes of 32 inputs; those of the other 32 are zero.
    pub halves: bool,
}

/// Up to 16 matrix rows as they are stored.
#[derive(Clone, Copy)]
pub(super) struct Packed<'a> {
    pub rows: &'a [u8],
    /// What will be wanted when these are done.
    ahead: &'a [u8],
    /// Bytes of a row.
    pub stride: usize,
    bits: u8,
}

multiversion! {
    fn load_affine(scales: &mut [[f32; LANES]], biases: &mut [[f32; LANES]], w: &MatrixBytes, rows: Range<usize>) = load_affine_body;
    fn unpack4(packed: &Packed, first: usize, codes: &mut [TileGroup]) = unpack4_body;
    fn unpack8(packed: &Packed, first: usize, codes: &mut [TileGroup]) = unpack8_body;
}

impl<'a> Tile<'a> {
    /// Tiles for the rows of a matrix, aimed at none.
    pub fn pair(w: &MatrixBytes, scratch: &'a mut [f32]) -> [Self; TILES] {
        let (group, bits) = match w.format {
            Format::Affine { bits, group, .. } => (GROUP.min(group as usize), bits),
            Format::Dense(_) => (GROUP, 0),
        };
        let groups = w.cols / group;
        let mut rest = scratch;
        std::array::from_fn(|_| {
            let (affine, tail) = std::mem::take(&mut rest).split_at_mut(2 * groups * LANES);
            let (codes, tail) = tail.split_at_mut(size_of::<TileGroup>() / 4 * groups.min(CHUNK));
            rest = tail;
            let (scales, biases) = affine.as_chunks_mut().0.split_at_mut(groups);
            let codes: &mut [u8] = bytemuck::cast_slice_mut(codes);
            let packed = Packed { rows: &[], ahead: &[], stride: w.row_bytes(), bits };
            let codes = codes.as_chunks_mut().0.as_chunks_mut().0;
            Self { codes, scales, biases, packed, kept: 0..0, halves: group == HALF }
        })
    }

    /// Takes the first of these rows, and reads their scales and biases. A tile at the matrix's end reaches back, so that
    /// it too has 16 rows if the matrix has.
    pub fn aim(&mut self, isa: Isa, w: &MatrixBytes<'a>, rows: Range<usize>) {
        let first = rows.start.min(w.rows.saturating_sub(LANES));
        let end = w.rows.min(first + LANES);
        self.kept = rows.start - first..end.min(rows.end) - first;
        let stride = self.packed.stride;
        let (start, stop) = (first * stride, end * stride);
        self.packed.rows = &w.weight[start..stop];
        self.packed.ahead = w.weight.get((start + AHEAD).max(stop)..).unwrap_or_default();
        load_affine(isa, self.scales, self.biases, w, first..end);
    }

    /// Has sixteen rows.
    pub const fn is_whole(&self) -> bool {
        self.packed.rows.len() == LANES * self.packed.stride
    }

    /// Codes may be above 15.
    pub const fn wide(&self) -> bool {
        self.packed.bits > 4
    }

    /// Unpacks some groups, at most `CHUNK`.
    pub fn unpack(&mut self, isa: Isa, groups: Range<usize>) {
        let whole = self.is_whole();
        let codes = &mut self.codes[..groups.len()];
        match self.packed.bits {
            4 if whole && !self.halves => unpack4(isa, &self.packed, groups.start, codes),
            8 if whole && !self.halves => unpack8(isa, &self.packed, groups.start, codes),
            _ => unpack(&self.packed, groups.start, self.halves, codes),
        }
    }
}

/// Scales and biases of up to 16 matrix rows.
#[inline(always)]
fn load_affine_body<V: Int8>(
    scales: &mut [[f32; LANES]],
    biases: &mut [[f32; LANES]],
    w: &MatrixBytes,
    rows: Range<usize>,
) {
    let Format::Affine { scale, group, .. } = w.format else {
        return;
    };
    let groups = w.cols / group as usize;
    let repeat = scales.len() / groups;
    let elements = rows.start * groups * scale.bytes()..rows.end * groups * scale.bytes();
    for (bytes, all) in [(w.scales, scales), (w.biases, biases)] {
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

/// The same of 8 bits.
#[inline(always)]
fn unpack8_body<V: Int8>(packed: &Packed, first: usize, codes: &mut [TileGroup]) {
    for (g, codes) in codes.iter_mut().enumerate() {
        for half in 0..2 {
            prefetch4::<V>(packed, 2 * (first + g) + half);
        }
        V::unpack8(packed.rows, packed.stride, first + g, codes);
    }
}

/// Asks for as many bytes as group `g` of a tile has, further on. The rows of a tile are read side by side, in more streams
/// than a processor foresees.
#[inline(always)]
pub(super) fn prefetch4<V: Int8>(packed: &Packed, g: usize) {
    for line in g * TILE_LINES..(g + 1) * TILE_LINES {
        V::prefetch(packed.ahead.get(line * CACHE_LINE..).unwrap_or_default());
    }
}

/// Codes of up to 16 matrix rows of any width, from group `first` on, a group being 64 inputs or half of that.
fn unpack(packed: &Packed, first: usize, halves: bool, codes: &mut [TileGroup]) {
    let inputs = if halves { HALF } else { GROUP };
    for (g, tile) in codes.iter_mut().enumerate() {
        let start = (first + g) * inputs;
        if halves {
            *tile = [[0; LANES * RUN]; GROUP / RUN];
        }
        for (c, row) in packed.rows.chunks_exact(packed.stride).enumerate() {
            let mut codes = [0; GROUP];
            decode::unpack(row, packed.bits, start, &mut codes[..inputs]);
            put_row(tile, c, start % GROUP, &codes[..inputs]);
        }
    }
}

/// Puts codes of row `c` in their places, from input `first` of the group on.
#[inline(always)]
pub(super) fn put_row(tile: &mut TileGroup, c: usize, first: usize, codes: &[u8]) {
    for (i, eight) in codes.as_chunks().0.iter().enumerate() {
        let even = place(first + i * 2 * RUN) / RUN;
        let eight = u64::from_le_bytes(*eight);
        tile[even][c * RUN..][..RUN].copy_from_slice(&every_other_byte(eight));
        tile[even + GROUP / RUN / 2][c * RUN..][..RUN].copy_from_slice(&every_other_byte(eight >> 8));
    }
}

/// Bytes 0, 2, 4 and 6.
#[inline(always)]
const fn every_other_byte(x: u64) -> [u8; RUN] {
    let x = x & 0x00ff_00ff_00ff_00ff;
    let x = (x | x >> 8) & 0x0000_ffff_0000_ffff;
    ((x | x >> 16) as u32).to_le_bytes()
}
