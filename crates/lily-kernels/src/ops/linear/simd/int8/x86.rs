//! AVX2 and AVX-512 VNNI: 4-bit codes to bytes, and the int32 dots of a tile.
//! The functions here carry no `target_feature`, because only `inline(always)` is sure to bring them into the loop over
//! the groups; the caller must be compiled for the instruction set, which is the rule of `Lanes`.

use super::{GROUP, Int8, LANES, RUN, TileGroup};
use crate::cpu::lanes::{Avx2, Avx512, Lanes};

mod avx2;
mod avx512;

/// Bytes of a group's 4-bit codes.
const PACKED: usize = GROUP / 2;

/// The first run of a group's odd inputs.
const ODD: usize = GROUP / RUN / 2;

/// Bytes at even places, then those at odd ones.
const EVEN_ODD: [u8; 16] = [0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15];

/// Runs of a sixteenth of 8-bit codes, put in the order of `EVEN_ODD`.
const fn runs_of_piece(piece: usize) -> [usize; 4] {
    [2 * piece, 2 * piece + 1, ODD + 2 * piece, ODD + 2 * piece + 1]
}

impl Int8 for Avx2 {
    const AT_ONCE: (usize, usize) = (4, 1);

    #[inline(always)]
    fn dots<const R: usize, const T: usize, const WIDE: bool>(
        tiles: [&TileGroup; T],
        x: [&[i8; GROUP]; R],
    ) -> [[Self; T]; R] {
        let mut dots = [[Self::splat(0.0); T]; R];
        for (t, tile) in tiles.iter().enumerate() {
            // SAFETY: only code compiled for AVX2 calls methods of `Avx2`.
            let tile = unsafe { avx2::tile_dots::<R, WIDE>(tile, x) };
            for r in 0..R {
                dots[r][t] = tile[r];
            }
        }
        dots
    }

    #[inline(always)]
    fn unpack4(rows: &[u8], stride: usize, g: usize, tile: &mut TileGroup) {
        // SAFETY: as in `dots`.
        unsafe { avx2::unpack4(rows, stride, g, tile) }
    }

    #[inline(always)]
    fn unpack8(rows: &[u8], stride: usize, g: usize, tile: &mut TileGroup) {
        // SAFETY: as in `dots`.
        unsafe { avx2::unpack8(rows, stride, g, tile) }
    }

    #[inline(always)]
    fn packed_dots4(rows: &[u8], stride: usize, g: usize, x: &[i8; GROUP]) -> Self {
        // SAFETY: as in `dots`.
        unsafe { avx2::packed_dots4(rows, stride, g, x) }
    }

    #[inline(always)]
    fn prefetch(bytes: &[u8]) {
        prefetch(bytes);
    }

    #[inline(always)]
    fn transpose_bf16(bytes: &[u8], out: &mut [[f32; LANES]]) -> usize {
        // SAFETY: as in `dots`.
        unsafe { avx2::transpose_bf16(bytes, out) }
    }
}

impl Int8 for Avx512 {
    const AT_ONCE: (usize, usize) = (6, 2);

    #[inline(always)]
    fn dots<const R: usize, const T: usize, const WIDE: bool>(
        tiles: [&TileGroup; T],
        x: [&[i8; GROUP]; R],
    ) -> [[Self; T]; R] {
        // SAFETY: only code compiled for AVX-512 with VNNI calls methods of `Avx512`.
        unsafe { avx512::dots(tiles, x) }
    }

    #[inline(always)]
    fn unpack4(rows: &[u8], stride: usize, g: usize, tile: &mut TileGroup) {
        // SAFETY: as in `dots`.
        unsafe { avx512::unpack4(rows, stride, g, tile) }
    }

    #[inline(always)]
    fn unpack8(rows: &[u8], stride: usize, g: usize, tile: &mut TileGroup) {
        // SAFETY: as in `dots`.
        unsafe { avx512::unpack8(rows, stride, g, tile) }
    }

    #[inline(always)]
    fn packed_dots4(rows: &[u8], stride: usize, g: usize, x: &[i8; GROUP]) -> Self {
        // SAFETY: as in `dots`.
        unsafe { avx512::packed_dots4(rows, stride, g, x) }
    }

    #[inline(always)]
    fn prefetch(bytes: &[u8]) {
        prefetch(bytes);
    }

    #[inline(always)]
    fn transpose_bf16(bytes: &[u8], out: &mut [[f32; LANES]]) -> usize {
        // SAFETY: as in `dots`; AVX-512 includes AVX2.
        unsafe { avx2::transpose_bf16(bytes, out) }
    }
}

/// A hint, and only that.
#[inline(always)]
fn prefetch(bytes: &[u8]) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a prefetch of any address changes nothing, and SSE is part of x86-64.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().cast()) }
}

/// Asserts that 16 rows of at least `g + 1` groups of so many bytes are there.
#[inline(always)]
fn check_packed(rows: &[u8], stride: usize, g: usize, group_bytes: usize) {
    assert!(rows.len() == LANES * stride && (g + 1) * group_bytes <= stride, "a tile of codes");
}

/// Four codes of an activation group, as one number to broadcast.
///
/// # Safety
/// `run` is below 16.
#[inline(always)]
unsafe fn run_of(x: &[i8; GROUP], run: usize) -> i32 {
    debug_assert!(run < GROUP / RUN);
    // SAFETY: the caller's; a check of each run would cost as much as the run.
    unsafe { x.as_ptr().add(run * RUN).cast::<i32>().read_unaligned() }
}
