//! Sixteen rows are one register.

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
            for (q, dwords) in transpose(load(at, stride)).into_iter().enumerate() {
                let run = piece * 4 + q;
                _mm512_storeu_si512(tile[run].as_mut_ptr().cast(), _mm512_and_si512(dwords, nibble));
                let high = _mm512_and_si512(_mm512_srli_epi16::<4>(dwords), nibble);
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
        let sums =
            _mm512_add_epi32(_mm512_shuffle_i32x4::<0b10_00_10_00>(a, b), _mm512_shuffle_i32x4::<0b11_01_11_01>(a, b));
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
pub unsafe fn dots<const R: usize, const T: usize>(tiles: [&TileGroup; T], x: [&[i8; GROUP]; R]) -> [[Avx512; T]; R] {
    // SAFETY: the caller's; the loads take a run's 64 bytes, and runs end at 16.
    unsafe {
        let mut sums = [[_mm512_setzero_si512(); T]; R];
        for run in 0..GROUP / RUN {
            let mut codes = [_mm512_setzero_si512(); T];
            for (codes, tile) in codes.iter_mut().zip(&tiles) {
                *codes = _mm512_loadu_si512(tile[run].as_ptr().cast());
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
