//! NEON with dot products: 4-bit codes to bytes, and the int32 dots of a tile.
//! As in `x86.rs` the functions carry no `target_feature`; the caller must be compiled for the instruction set, which is
//! the rule of `Lanes`. `sdot` and `prfm` are assembly, because their intrinsics are not stable.

use std::arch::aarch64::*;
use std::arch::asm;

use super::{GROUP, Int8, LANES, RUN, TileGroup};
use crate::cpu::lanes::{Lanes, Neon};

/// Bytes of a group's 4-bit codes.
const PACKED: usize = GROUP / 2;

/// Bytes of a register.
const REGISTER: usize = 16;

/// The first run of a group's odd inputs.
const ODD: usize = GROUP / RUN / 2;

impl Int8 for Neon {
    const AT_ONCE: (usize, usize) = (4, 1);

    #[inline(always)]
    fn dots<const R: usize, const T: usize, const WIDE: bool>(
        tiles: [&TileGroup; T],
        x: [&[i8; GROUP]; R],
    ) -> [[Self; T]; R] {
        let mut dots = [[Self::splat(0.0); T]; R];
        for (t, tile) in tiles.iter().enumerate() {
            // SAFETY: only code compiled for NEON with dot products calls methods of `Neon`.
            let tile = unsafe { tile_dots::<R, WIDE>(tile, x) };
            for r in 0..R {
                dots[r][t] = tile[r];
            }
        }
        dots
    }

    #[inline(always)]
    fn unpack4(rows: &[u8], stride: usize, g: usize, tile: &mut TileGroup) {
        // SAFETY: as in `dots`.
        unsafe { unpack4(rows, stride, g, tile) }
    }

    #[inline(always)]
    fn packed_dots4(rows: &[u8], stride: usize, g: usize, x: &[i8; GROUP]) -> Self {
        // SAFETY: as in `dots`.
        unsafe { packed_dots4(rows, stride, g, x) }
    }

    #[inline(always)]
    fn prefetch(bytes: &[u8]) {
        // SAFETY: a hint: a prefetch of any address changes nothing.
        unsafe {
            asm!("prfm pldl1keep, [{at}]", at = in(reg) bytes.as_ptr().addr(), options(nomem, nostack, preserves_flags));
        }
    }

    #[inline(always)]
    fn transpose_bf16(bytes: &[u8], out: &mut [[f32; LANES]]) -> usize {
        // SAFETY: as in `dots`.
        unsafe { transpose_bf16(bytes, out) }
    }
}

/// Asserts that 16 rows of at least `g + 1` packed groups are there.
#[inline(always)]
fn check_packed(rows: &[u8], stride: usize, g: usize) {
    assert!(rows.len() == LANES * stride && (g + 1) * PACKED <= stride, "a tile of 4-bit codes");
}

/// Adds to each int32 the products of its four bytes.
///
/// # Safety
/// Dot products.
#[inline(always)]
unsafe fn dot(mut sums: int32x4_t, codes: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: the caller's; only registers are touched.
    unsafe {
        asm!(
            "sdot {sums:v}.4s, {codes:v}.16b, {x:v}.16b",
            sums = inout(vreg) sums, codes = in(vreg) codes, x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

/// The same with one dword of x, `Q`, against all four of the codes.
///
/// # Safety
/// Dot products.
#[inline(always)]
unsafe fn dot_dword<const Q: usize>(mut sums: int32x4_t, codes: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: the caller's; only registers are touched.
    unsafe {
        asm!(
            "sdot {sums:v}.4s, {codes:v}.16b, {x:v}.4b[{q}]",
            sums = inout(vreg) sums, codes = in(vreg) codes, x = in(vreg) x, q = const Q,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

/// Int32 sums of 16 rows, four rows a register.
type Sums = [int32x4_t; 4];

/// # Safety
/// NEON with dot products.
#[inline(always)]
unsafe fn tile_dots<const R: usize, const WIDE: bool>(tile: &TileGroup, x: [&[i8; GROUP]; R]) -> [Neon; R] {
    // SAFETY: the caller's; an activation register is 16 of a group's 64 codes.
    unsafe {
        let mut sums = [[vdupq_n_s32(0); 4]; R];
        if WIDE {
            for r in 0..R {
                sums[r] = [wide_start(x[r]); 4];
            }
        }
        for (quarter, runs) in tile.as_chunks::<4>().0.iter().enumerate() {
            let mut codes = [vdupq_n_s8(0); R];
            for r in 0..R {
                codes[r] = vld1q_s8(x[r].as_ptr().add(quarter * REGISTER));
            }
            add_run::<R, 0, WIDE>(&mut sums, &runs[0], codes);
            add_run::<R, 1, WIDE>(&mut sums, &runs[1], codes);
            add_run::<R, 2, WIDE>(&mut sums, &runs[2], codes);
            add_run::<R, 3, WIDE>(&mut sums, &runs[3], codes);
        }
        let mut dots = [Neon([vdupq_n_f32(0.0); 4]); R];
        for (dots, sums) in dots.iter_mut().zip(sums) {
            *dots = to_f32(sums);
        }
        dots
    }
}

/// Codes above 127 are no int8: `add_run` takes 128 off each, and every row's sum starts with 128·Σx instead.
///
/// # Safety
/// NEON with dot products.
#[inline(always)]
unsafe fn wide_start(x: &[i8; GROUP]) -> int32x4_t {
    // SAFETY: the caller's; the loads take the group's 64 codes.
    unsafe {
        let mut sums = vdupq_n_s32(0);
        for at in (0..GROUP).step_by(REGISTER) {
            sums = dot(sums, vld1q_s8(x.as_ptr().add(at)), vdupq_n_s8(1));
        }
        vdupq_n_s32(vaddvq_s32(sums) << 7)
    }
}

/// Adds one run of 16 rows to the sums of every activation group, the run's codes being dword `Q` of x.
///
/// # Safety
/// NEON with dot products.
#[inline(always)]
unsafe fn add_run<const R: usize, const Q: usize, const WIDE: bool>(
    sums: &mut [Sums; R],
    run: &[u8; LANES * RUN],
    x: [int8x16_t; R],
) {
    for (i, four) in run.as_chunks::<REGISTER>().0.iter().enumerate() {
        // SAFETY: the caller's; the load takes the four rows' bytes and needs no alignment.
        unsafe {
            let mut codes = vreinterpretq_s8_u8(vld1q_u8(four.as_ptr()));
            if WIDE {
                codes = veorq_s8(codes, vdupq_n_s8(i8::MIN));
            }
            for r in 0..R {
                sums[r][i] = dot_dword::<Q>(sums[r][i], codes, x[r]);
            }
        }
    }
}

/// # Safety
/// NEON.
#[inline(always)]
unsafe fn to_f32([a, b, c, d]: Sums) -> Neon {
    // SAFETY: the caller's.
    Neon(unsafe { [vcvtq_f32_s32(a), vcvtq_f32_s32(b), vcvtq_f32_s32(c), vcvtq_f32_s32(d)] })
}

/// The even codes of 16 bytes, and the odd ones.
///
/// # Safety
/// NEON; 16 bytes at `at` can be read.
#[inline(always)]
unsafe fn nibbles(at: *const u8) -> [uint8x16_t; 2] {
    // SAFETY: the caller's.
    unsafe {
        let packed = vld1q_u8(at);
        [vandq_u8(packed, vdupq_n_u8(15)), vshrq_n_u8::<4>(packed)]
    }
}

/// # Safety
/// NEON.
#[inline(always)]
unsafe fn unpack4(rows: &[u8], stride: usize, g: usize, tile: &mut TileGroup) {
    check_packed(rows, stride, g);
    for four in 0..LANES / 4 {
        for half in 0..2 {
            // SAFETY: inside the 16 rows, as checked; the stores fill four rows of a run.
            unsafe {
                let at = rows.as_ptr().add(4 * four * stride + g * PACKED + half * REGISTER);
                for (q, packed) in dwords(at, stride).into_iter().enumerate() {
                    let run = half * 4 + q;
                    let even = vandq_u8(packed, vdupq_n_u8(15));
                    vst1q_u8(tile[run].as_mut_ptr().add(four * REGISTER), even);
                    vst1q_u8(tile[run + ODD].as_mut_ptr().add(four * REGISTER), vshrq_n_u8::<4>(packed));
                }
            }
        }
    }
}

/// 16 bytes of four rows: dword q of every row, for q = 0 … 3.
///
/// # Safety
/// NEON; 16 bytes of each row, `stride` apart, can be read.
#[inline(always)]
unsafe fn dwords(at: *const u8, stride: usize) -> [uint8x16_t; 4] {
    // SAFETY: the caller's.
    unsafe {
        let mut rows = [vdupq_n_u32(0); 4];
        for (r, row) in rows.iter_mut().enumerate() {
            *row = vreinterpretq_u32_u8(vld1q_u8(at.add(r * stride)));
        }
        let [a, b, c, d] = rows;
        let (ab, cd) = (vreinterpretq_u64_u32(vzip1q_u32(a, b)), vreinterpretq_u64_u32(vzip1q_u32(c, d)));
        let (ab_high, cd_high) = (vreinterpretq_u64_u32(vzip2q_u32(a, b)), vreinterpretq_u64_u32(vzip2q_u32(c, d)));
        [
            vreinterpretq_u8_u64(vzip1q_u64(ab, cd)),
            vreinterpretq_u8_u64(vzip2q_u64(ab, cd)),
            vreinterpretq_u8_u64(vzip1q_u64(ab_high, cd_high)),
            vreinterpretq_u8_u64(vzip2q_u64(ab_high, cd_high)),
        ]
    }
}

/// A group's activations with the even and with the odd codes of either half of a row's bytes.
type Halves = [[int8x16_t; 2]; 2];

/// # Safety
/// NEON with dot products.
#[inline(always)]
unsafe fn packed_dots4(rows: &[u8], stride: usize, g: usize, x: &[i8; GROUP]) -> Neon {
    check_packed(rows, stride, g);
    // SAFETY: inside the 16 rows, as checked; a load of x takes 16 of its 64 codes.
    unsafe {
        let (even, odd) = (x.as_ptr(), x.as_ptr().add(GROUP / 2));
        let x = [[vld1q_s8(even), vld1q_s8(odd)], [vld1q_s8(even.add(REGISTER)), vld1q_s8(odd.add(REGISTER))]];
        let at = rows.as_ptr().add(g * PACKED);
        let mut sums = [vdupq_n_s32(0); 4];
        for (r, sums) in sums.iter_mut().enumerate() {
            *sums = four_rows(at.add(4 * r * stride), stride, x);
        }
        to_f32(sums)
    }
}

/// One sum for each of four rows, `stride` bytes apart.
///
/// # Safety
/// NEON with dot products; a group's bytes of each row can be read.
#[inline(always)]
unsafe fn four_rows(at: *const u8, stride: usize, x: Halves) -> int32x4_t {
    // SAFETY: the caller's.
    unsafe {
        // Adding neighbours twice leaves one sum a row.
        let first = vpaddq_s32(row_sums(at, x), row_sums(at.add(stride), x));
        let second = vpaddq_s32(row_sums(at.add(2 * stride), x), row_sums(at.add(3 * stride), x));
        vpaddq_s32(first, second)
    }
}

/// Four sums of one row.
///
/// # Safety
/// NEON with dot products; a group's bytes can be read.
#[inline(always)]
unsafe fn row_sums(at: *const u8, x: Halves) -> int32x4_t {
    // SAFETY: the caller's.
    unsafe {
        let mut sums = vdupq_n_s32(0);
        for (half, [x_even, x_odd]) in x.into_iter().enumerate() {
            let [even, odd] = nibbles(at.add(half * REGISTER));
            sums = dot(sums, vreinterpretq_s8_u8(even), x_even);
            sums = dot(sums, vreinterpretq_s8_u8(odd), x_odd);
        }
        sums
    }
}

/// # Safety
/// NEON.
#[inline(always)]
unsafe fn transpose_bf16(bytes: &[u8], out: &mut [[f32; LANES]]) -> usize {
    let groups = out.len();
    assert_eq!(bytes.len(), LANES * groups * 2);
    let (eights, _) = out.as_chunks_mut::<8>();
    for (i, eight) in eights.iter_mut().enumerate() {
        for half in 0..2 {
            // SAFETY: 8 groups, from group 8·i on, of 8 rows of `groups` each; the stores fill half of 16 elements.
            unsafe {
                let at = bytes.as_ptr().add((half * 8 * groups + i * 8) * 2);
                for (out, column) in eight.iter_mut().zip(transpose8(at, groups * 2)) {
                    let (low, high) = (vshll_n_u16::<16>(vget_low_u16(column)), vshll_high_n_u16::<16>(column));
                    let out = out.as_mut_ptr().add(half * 8);
                    vst1q_f32(out, vreinterpretq_f32_u32(low));
                    vst1q_f32(out.add(4), vreinterpretq_f32_u32(high));
                }
            }
        }
    }
    eights.len() * 8
}

/// Transposes 8×8 words, rows `stride` bytes apart.
///
/// # Safety
/// NEON; 16 bytes of each row can be read.
#[inline(always)]
unsafe fn transpose8(at: *const u8, stride: usize) -> [uint16x8_t; 8] {
    // SAFETY: the caller's.
    unsafe {
        let (low, high) = (transpose4(at, stride), transpose4(at.add(4 * stride), stride));
        let mut out = [vdupq_n_u16(0); 8];
        for i in 0..4 {
            out[2 * i] = vreinterpretq_u16_u64(vzip1q_u64(low[i], high[i]));
            out[2 * i + 1] = vreinterpretq_u16_u64(vzip2q_u64(low[i], high[i]));
        }
        out
    }
}

/// Columns 2i and 2i + 1 of four rows of 8 words, in register i.
///
/// # Safety
/// NEON; 16 bytes of each row can be read.
#[inline(always)]
unsafe fn transpose4(at: *const u8, stride: usize) -> [uint64x2_t; 4] {
    // SAFETY: the caller's.
    unsafe {
        let mut rows = [vdupq_n_u16(0); 4];
        for (r, row) in rows.iter_mut().enumerate() {
            *row = vreinterpretq_u16_u8(vld1q_u8(at.add(r * stride)));
        }
        let [a, b, c, d] = rows;
        let (ab, cd) = (vreinterpretq_u32_u16(vzip1q_u16(a, b)), vreinterpretq_u32_u16(vzip1q_u16(c, d)));
        let (ab_high, cd_high) = (vreinterpretq_u32_u16(vzip2q_u16(a, b)), vreinterpretq_u32_u16(vzip2q_u16(c, d)));
        [
            vreinterpretq_u64_u32(vzip1q_u32(ab, cd)),
            vreinterpretq_u64_u32(vzip2q_u32(ab, cd)),
            vreinterpretq_u64_u32(vzip1q_u32(ab_high, cd_high)),
            vreinterpretq_u64_u32(vzip2q_u32(ab_high, cd_high)),
        ]
    }
}
