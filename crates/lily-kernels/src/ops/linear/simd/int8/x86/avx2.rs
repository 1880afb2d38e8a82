//! Sixteen rows are two registers of eight.

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
                for (q, dwords) in dwords(at, stride).into_iter().enumerate() {
                    let run = piece * 4 + q;
                    let (even, odd) = (tile[run].as_mut_ptr(), tile[run + ODD].as_mut_ptr());
                    _mm256_storeu_si256(even.add(half * 32).cast(), _mm256_and_si256(dwords, nibble));
                    let high = _mm256_and_si256(_mm256_srli_epi16::<4>(dwords), nibble);
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
        let count = std::hint::black_box(ODD).min(ODD);
        for (run, codes) in (first..).zip(&tile[first..first + count]) {
            let codes = codes.as_ptr();
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
