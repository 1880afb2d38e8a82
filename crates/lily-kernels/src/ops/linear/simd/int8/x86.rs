//! AVX2 and AVX-512 VNNI: 4-bit codes to bytes, and the int32 dots of a tile.
//! The functions here carry no `target_feature`, because only `inline(always)` is sure to bring them into the loop over
//! the groups; the caller must be compiled for the instruction set, which is the rule of `Lanes`.

use super::{GROUP, Int8, LANES, RUN, TileGroup};
use crate::cpu::lanes::{Avx2, Avx512, Lanes};

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

mod avx2 {
    use std::arch::x86_64::*;

    use super::*;

    /// Sixteen rows, eight a register.
    type Sums = [__m256i; 2];

    /// 16 bytes of 8 rows: dword q of every row, for q = 0 … 3.
    ///
    /// # Safety
    /// AVX2; `at` + 16 bytes of each of the 8 rows, `stride` apart, can be read.
    #[inline(always)]
    unsafe fn dwords(at: *const u8, stride: usize) -> [__m256i; 4] {
        // SAFETY: the caller's.
        unsafe {
            let mut rows = [_mm256_setzero_si256(); 4];
            for (r, pair) in rows.iter_mut().enumerate() {
                let (low, high) = (at.add(r * stride), at.add((r + 4) * stride));
                *pair = _mm256_loadu2_m128i(high.cast(), low.cast());
            }
            transpose(rows)
        }
    }

    /// The same of bytes that are codes: the dwords then are the even codes of the first and the second 8 bytes, and the odd
    /// ones.
    ///
    /// # Safety
    /// As for `dwords`.
    #[inline(always)]
    unsafe fn even_odd_dwords(at: *const u8, stride: usize) -> [__m256i; 4] {
        // SAFETY: the caller's.
        unsafe {
            let order = _mm256_broadcastsi128_si256(_mm_loadu_si128(EVEN_ODD.as_ptr().cast()));
            let mut rows = [_mm256_setzero_si256(); 4];
            for (r, pair) in rows.iter_mut().enumerate() {
                let (low, high) = (at.add(r * stride), at.add((r + 4) * stride));
                *pair = _mm256_shuffle_epi8(_mm256_loadu2_m128i(high.cast(), low.cast()), order);
            }
            transpose(rows)
        }
    }

    /// Transposes 4×4 dwords in each 128-bit lane.
    ///
    /// # Safety
    /// AVX2.
    #[inline(always)]
    unsafe fn transpose([a, b, c, d]: [__m256i; 4]) -> [__m256i; 4] {
        // SAFETY: the caller's.
        unsafe {
            let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
            let (ab_high, cd_high) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
            [
                _mm256_unpacklo_epi64(ab, cd),
                _mm256_unpackhi_epi64(ab, cd),
                _mm256_unpacklo_epi64(ab_high, cd_high),
                _mm256_unpackhi_epi64(ab_high, cd_high),
            ]
        }
    }

    /// # Safety
    /// AVX2.
    #[inline(always)]
    pub unsafe fn unpack8(rows: &[u8], stride: usize, g: usize, tile: &mut TileGroup) {
        check_packed(rows, stride, g, GROUP);
        for half in 0..2 {
            for piece in 0..4 {
                // SAFETY: inside the 16 rows, as checked; the stores fill half of a run's 64 bytes.
                unsafe {
                    let at = rows.as_ptr().add(half * 8 * stride + g * GROUP + piece * 16);
                    let dwords = even_odd_dwords(at, stride);
                    for (q, run) in runs_of_piece(piece).into_iter().enumerate() {
                        _mm256_storeu_si256(tile[run].as_mut_ptr().add(half * 32).cast(), dwords[q]);
                    }
                }
            }
        }
    }

    /// # Safety
    /// AVX2.
    #[inline(always)]
    pub unsafe fn unpack4(rows: &[u8], stride: usize, g: usize, tile: &mut TileGroup) {
        check_packed(rows, stride, g, PACKED);
        for half in 0..2 {
            for piece in 0..2 {
                // SAFETY: inside the 16 rows, as checked; the stores fill half of a run's 64 bytes.
                unsafe {
                    let nibble = _mm256_set1_epi8(15);
                    let at = rows.as_ptr().add(half * 8 * stride + g * PACKED + piece * 16);
                    let dwords = dwords(at, stride);
                    for q in 0..4 {
                        let run = piece * 4 + q;
                        let (even, odd) = (tile[run].as_mut_ptr(), tile[run + ODD].as_mut_ptr());
                        _mm256_storeu_si256(even.add(half * 32).cast(), _mm256_and_si256(dwords[q], nibble));
                        let high = _mm256_and_si256(_mm256_srli_epi16::<4>(dwords[q]), nibble);
                        _mm256_storeu_si256(odd.add(half * 32).cast(), high);
                    }
                }
            }
        }
    }

    /// Row by row: a byte's low nibble is an even code, its high one the next odd one, as the activations stand.
    ///
    /// # Safety
    /// AVX2.
    #[inline(always)]
    pub unsafe fn packed_dots4(rows: &[u8], stride: usize, g: usize, x: &[i8; GROUP]) -> Avx2 {
        check_packed(rows, stride, g, PACKED);
        // SAFETY: inside the 16 rows, as checked.
        unsafe {
            let at = rows.as_ptr().add(g * PACKED);
            let (even, odd) = (_mm256_loadu_si256(x.as_ptr().cast()), _mm256_loadu_si256(x.as_ptr().add(32).cast()));
            let nibble = _mm256_set1_epi8(15);
            let mut dots = [_mm256_setzero_si256(); 2];
            for (half, dots) in dots.iter_mut().enumerate() {
                let mut sums = [_mm256_setzero_si256(); 8];
                for (row, sum) in sums.iter_mut().enumerate() {
                    let codes = _mm256_loadu_si256(at.add((half * 8 + row) * stride).cast());
                    let low = _mm256_maddubs_epi16(_mm256_and_si256(codes, nibble), even);
                    let codes = _mm256_and_si256(_mm256_srli_epi16::<4>(codes), nibble);
                    *sum = add_products(low, codes, odd);
                }
                *dots = eight_rows(sums);
            }
            to_f32(dots)
        }
    }

    /// Sixteen int16 sums a row, of four products each, to one int32 a row. Sixteen products of at most 15·128 fit int16.
    ///
    /// # Safety
    /// AVX2.
    #[inline(always)]
    unsafe fn eight_rows(sums: [__m256i; 8]) -> __m256i {
        // SAFETY: the caller's.
        unsafe {
            let [a, b, c, d, e, f, g, h] = sums;
            let (low, high) = (four_rows([a, b, c, d]), four_rows([e, f, g, h]));
            _mm256_add_epi32(_mm256_permute2x128_si256::<0x20>(low, high), _mm256_permute2x128_si256::<0x31>(low, high))
        }
    }

    /// The same to two int32 a row, one in each half.
    ///
    /// # Safety
    /// AVX2.
    #[inline(always)]
    unsafe fn four_rows([a, b, c, d]: [__m256i; 4]) -> __m256i {
        // SAFETY: the caller's.
        unsafe {
            let (ab, cd) = (fold(a, b), fold(c, d));
            let sums = _mm256_add_epi16(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
            _mm256_madd_epi16(sums, _mm256_set1_epi16(1))
        }
    }

    /// Sums of dwords 0 + 2 and 1 + 3 of each 128-bit lane as int16, of both registers in turn.
    ///
    /// # Safety
    /// AVX2.
    #[inline(always)]
    unsafe fn fold(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the caller's.
        unsafe { _mm256_add_epi16(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b)) }
    }

    /// # Safety
    /// AVX2.
    #[inline(always)]
    pub unsafe fn tile_dots<const R: usize, const WIDE: bool>(tile: &TileGroup, x: [&[i8; GROUP]; R]) -> [Avx2; R] {
        let mut dots = [Avx2::splat(0.0); R];
        // SAFETY: the caller's.
        unsafe {
            let mut sums = half_sums::<R, WIDE>(tile, 0, x);
            let odds = half_sums::<R, WIDE>(tile, ODD, x);
            for r in 0..R {
                for i in 0..2 {
                    sums[r][i] = _mm256_add_epi32(sums[r][i], odds[r][i]);
                }
                dots[r] = to_f32(sums[r]);
            }
        }
        dots
    }

    /// Int32 sums of 16 rows with half of each activation group, from run `first` on.
    ///
    /// # Safety
    /// AVX2.
    #[inline(always)]
    unsafe fn half_sums<const R: usize, const WIDE: bool>(
        tile: &TileGroup,
        first: usize,
        x: [&[i8; GROUP]; R],
    ) -> [Sums; R] {
        // SAFETY: the caller's; the loads take a run's 64 bytes, and runs end at 16.
        unsafe {
            let zero = _mm256_setzero_si256();
            let (mut low, mut high) = ([[zero; 2]; R], [[zero; 2]; R]);
            // A constant number of runs would be unrolled, and the sums put in another order that has to keep most of the
            // products, for which there are no registers.
            for run in first..first + std::hint::black_box(ODD).min(ODD) {
                let codes = tile[run].as_ptr();
                let rows = [_mm256_loadu_si256(codes.cast()), _mm256_loadu_si256(codes.add(32).cast())];
                if WIDE {
                    // Products of codes above 15 could overflow int16, so the two halves of a code go apart.
                    let nibble = _mm256_set1_epi8(15);
                    let (mut bottoms, mut tops) = (rows, rows);
                    for i in 0..2 {
                        bottoms[i] = _mm256_and_si256(rows[i], nibble);
                        tops[i] = _mm256_and_si256(_mm256_srli_epi16::<4>(rows[i]), nibble);
                    }
                    add_run(&mut high, tops, run, x);
                    add_run(&mut low, bottoms, run, x);
                } else {
                    add_run(&mut low, rows, run, x);
                }
            }
            let ones = _mm256_set1_epi16(1);
            for r in 0..R {
                for i in 0..2 {
                    low[r][i] = _mm256_madd_epi16(low[r][i], ones);
                    if WIDE {
                        let top = _mm256_slli_epi32::<4>(_mm256_madd_epi16(high[r][i], ones));
                        low[r][i] = _mm256_add_epi32(low[r][i], top);
                    }
                }
            }
            low
        }
    }

    /// Adds one run of 16 rows to the int16 sums of every activation group. The 16 products of half a group, of at most
    /// 15·128, fit.
    ///
    /// # Safety
    /// AVX2; `run` is below 16.
    #[inline(always)]
    unsafe fn add_run<const R: usize>(sums: &mut [Sums; R], rows: Sums, run: usize, x: [&[i8; GROUP]; R]) {
        for r in 0..R {
            // SAFETY: the caller's.
            unsafe {
                let x = _mm256_set1_epi32(run_of(x[r], run));
                for i in 0..2 {
                    sums[r][i] = add_products(sums[r][i], rows[i], x);
                }
            }
        }
    }

    /// Adds products of codes up to 15, in neighbouring pairs, to int16 sums.
    ///
    /// # Safety
    /// AVX2.
    #[inline(always)]
    unsafe fn add_products(sums: __m256i, codes: __m256i, x: __m256i) -> __m256i {
        // SAFETY: the caller's.
        unsafe { _mm256_add_epi16(sums, _mm256_maddubs_epi16(codes, x)) }
    }

    /// # Safety
    /// AVX2.
    #[inline(always)]
    unsafe fn to_f32([low, high]: [__m256i; 2]) -> Avx2 {
        // SAFETY: the caller's.
        Avx2(unsafe { [_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)] })
    }

    /// # Safety
    /// AVX2.
    #[inline(always)]
    pub unsafe fn transpose_bf16(bytes: &[u8], out: &mut [[f32; LANES]]) -> usize {
        let groups = out.len();
        assert_eq!(bytes.len(), LANES * groups * 2);
        let (eights, _) = out.as_chunks_mut::<8>();
        for (i, eight) in eights.iter_mut().enumerate() {
            for half in 0..2 {
                // SAFETY: 8 groups, from group 8·i on, of 8 rows of `groups` each; the stores fill half of 16 elements.
                unsafe {
                    let at = bytes.as_ptr().add((half * 8 * groups + i * 8) * 2);
                    for (out, column) in eight.iter_mut().zip(&transpose8(at, groups * 2)) {
                        let wide = _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(*column));
                        _mm256_storeu_ps(out.as_mut_ptr().add(half * 8), _mm256_castsi256_ps(wide));
                    }
                }
            }
        }
        eights.len() * 8
    }

    /// Transposes 8×8 words, rows `stride` bytes apart.
    ///
    /// # Safety
    /// AVX2; 16 bytes of each row can be read.
    #[inline(always)]
    unsafe fn transpose8(at: *const u8, stride: usize) -> [__m128i; 8] {
        // SAFETY: the caller's.
        unsafe {
            let row = |row: usize| _mm_loadu_si128(at.add(row * stride).cast());
            let quads = |r: usize| {
                let (a, b, c, d) = (row(r), row(r + 1), row(r + 2), row(r + 3));
                let (ab, cd) = (_mm_unpacklo_epi16(a, b), _mm_unpacklo_epi16(c, d));
                let (ab_high, cd_high) = (_mm_unpackhi_epi16(a, b), _mm_unpackhi_epi16(c, d));
                [
                    _mm_unpacklo_epi32(ab, cd),
                    _mm_unpackhi_epi32(ab, cd),
                    _mm_unpacklo_epi32(ab_high, cd_high),
                    _mm_unpackhi_epi32(ab_high, cd_high),
                ]
            };
            let (low, high) = (quads(0), quads(4));
            let mut out = [_mm_setzero_si128(); 8];
            for i in 0..4 {
                out[2 * i] = _mm_unpacklo_epi64(low[i], high[i]);
                out[2 * i + 1] = _mm_unpackhi_epi64(low[i], high[i]);
            }
            out
        }
    }
}

mod avx512 {
    use std::arch::x86_64::*;

    use super::*;

    /// 16 bytes of 16 rows, four rows a register, in an order that leaves them sorted when transposed.
    ///
    /// # Safety
    /// AVX-512 F; `at` + 16 bytes of each of the 16 rows, `stride` apart, can be read.
    #[inline(always)]
    unsafe fn load(at: *const u8, stride: usize) -> [__m512i; 4] {
        // SAFETY: the caller's.
        let mut fours = [unsafe { _mm512_setzero_si512() }; 4];
        for (r, four) in fours.iter_mut().enumerate() {
            // SAFETY: the caller's.
            unsafe {
                let at = at.add(r * stride);
                let lanes = _mm512_castsi128_si512(_mm_loadu_si128(at.cast()));
                let lanes = _mm512_inserti32x4::<1>(lanes, _mm_loadu_si128(at.add(4 * stride).cast()));
                let lanes = _mm512_inserti32x4::<2>(lanes, _mm_loadu_si128(at.add(8 * stride).cast()));
                *four = _mm512_inserti32x4::<3>(lanes, _mm_loadu_si128(at.add(12 * stride).cast()));
            }
        }
        fours
    }

    /// Transposes 4×4 dwords in each 128-bit lane.
    ///
    /// # Safety
    /// AVX-512 F.
    #[inline(always)]
    unsafe fn transpose([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
        // SAFETY: the caller's.
        unsafe {
            let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
            let (ab_high, cd_high) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
            [
                _mm512_unpacklo_epi64(ab, cd),
                _mm512_unpackhi_epi64(ab, cd),
                _mm512_unpacklo_epi64(ab_high, cd_high),
                _mm512_unpackhi_epi64(ab_high, cd_high),
            ]
        }
    }

    /// # Safety
    /// AVX-512 F and BW.
    #[inline(always)]
    pub unsafe fn unpack8(rows: &[u8], stride: usize, g: usize, tile: &mut TileGroup) {
        check_packed(rows, stride, g, GROUP);
        for piece in 0..4 {
            // SAFETY: inside the 16 rows, as checked; the stores fill a run's 64 bytes.
            unsafe {
                let order = _mm512_broadcast_i32x4(_mm_loadu_si128(EVEN_ODD.as_ptr().cast()));
                let mut fours = load(rows.as_ptr().add(g * GROUP + piece * 16), stride);
                for four in &mut fours {
                    *four = _mm512_shuffle_epi8(*four, order);
                }
                let dwords = transpose(fours);
                for (q, run) in runs_of_piece(piece).into_iter().enumerate() {
                    _mm512_storeu_si512(tile[run].as_mut_ptr().cast(), dwords[q]);
                }
            }
        }
    }

    /// # Safety
    /// AVX-512 F and BW.
    #[inline(always)]
    pub unsafe fn unpack4(rows: &[u8], stride: usize, g: usize, tile: &mut TileGroup) {
        check_packed(rows, stride, g, PACKED);
        for piece in 0..2 {
            // SAFETY: inside the 16 rows, as checked; the stores fill a run's 64 bytes.
            unsafe {
                let nibble = _mm512_set1_epi8(15);
                let at = rows.as_ptr().add(g * PACKED + piece * 16);
                let dwords = transpose(load(at, stride));
                for q in 0..4 {
                    let run = piece * 4 + q;
                    _mm512_storeu_si512(tile[run].as_mut_ptr().cast(), _mm512_and_si512(dwords[q], nibble));
                    let high = _mm512_and_si512(_mm512_srli_epi16::<4>(dwords[q]), nibble);
                    _mm512_storeu_si512(tile[run + ODD].as_mut_ptr().cast(), high);
                }
            }
        }
    }

    /// As in `avx2`, rows r and r + 8 in the halves of a register.
    ///
    /// # Safety
    /// AVX-512 F, BW and VNNI.
    #[inline(always)]
    pub unsafe fn packed_dots4(rows: &[u8], stride: usize, g: usize, x: &[i8; GROUP]) -> Avx512 {
        check_packed(rows, stride, g, PACKED);
        // SAFETY: inside the 16 rows, as checked; AVX-512 includes AVX2.
        unsafe {
            let at = rows.as_ptr().add(g * PACKED);
            let even = _mm512_broadcast_i64x4(_mm256_loadu_si256(x.as_ptr().cast()));
            let odd = _mm512_broadcast_i64x4(_mm256_loadu_si256(x.as_ptr().add(32).cast()));
            let nibble = _mm512_set1_epi8(15);
            // Loops and functions, not closures: code in a closure is not sure to be compiled for the set.
            let mut fours = [_mm512_setzero_si512(); 2];
            for (i, four) in fours.iter_mut().enumerate() {
                let mut pairs = [_mm512_setzero_si512(); 4];
                for (r, pair) in pairs.iter_mut().enumerate() {
                    let at = at.add((i * 4 + r) * stride);
                    let (low, high) = (_mm256_loadu_si256(at.cast()), _mm256_loadu_si256(at.add(8 * stride).cast()));
                    let codes = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
                    let sums = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_and_si512(codes, nibble), even);
                    *pair = _mm512_dpbusd_epi32(sums, _mm512_and_si512(_mm512_srli_epi16::<4>(codes), nibble), odd);
                }
                let (ab, cd) = (fold(pairs[0], pairs[1]), fold(pairs[2], pairs[3]));
                *four = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
            }
            // 128-bit lanes hold rows 0–3 twice and 8–11 twice; 4–7 twice and 12–15 twice.
            let [a, b] = fours;
            let sums = _mm512_add_epi32(
                _mm512_shuffle_i32x4::<0b10_00_10_00>(a, b),
                _mm512_shuffle_i32x4::<0b11_01_11_01>(a, b),
            );
            Avx512([_mm512_cvtepi32_ps(_mm512_shuffle_i32x4::<0b11_01_10_00>(sums, sums))])
        }
    }

    /// Sums of dwords 0 + 2 and 1 + 3 of each 128-bit lane, of both registers in turn.
    ///
    /// # Safety
    /// AVX-512 F.
    #[inline(always)]
    unsafe fn fold(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the caller's.
        unsafe { _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b)) }
    }

    /// Codes may take all of a byte: VNNI adds in int32.
    ///
    /// # Safety
    /// AVX-512 F and VNNI.
    #[inline(always)]
    pub unsafe fn dots<const R: usize, const T: usize>(
        tiles: [&TileGroup; T],
        x: [&[i8; GROUP]; R],
    ) -> [[Avx512; T]; R] {
        // SAFETY: the caller's; the loads take a run's 64 bytes, and runs end at 16.
        unsafe {
            let mut sums = [[_mm512_setzero_si512(); T]; R];
            for run in 0..GROUP / RUN {
                let mut codes = [_mm512_setzero_si512(); T];
                for t in 0..T {
                    codes[t] = _mm512_loadu_si512(tiles[t][run].as_ptr().cast());
                }
                for r in 0..R {
                    let x = _mm512_set1_epi32(run_of(x[r], run));
                    for t in 0..T {
                        sums[r][t] = _mm512_dpbusd_epi32(sums[r][t], codes[t], x);
                    }
                }
            }
            let mut dots = [[Avx512([_mm512_setzero_ps()]); T]; R];
            for r in 0..R {
                for t in 0..T {
                    dots[r][t] = Avx512([_mm512_cvtepi32_ps(sums[r][t])]);
                }
            }
            dots
        }
    }
}
