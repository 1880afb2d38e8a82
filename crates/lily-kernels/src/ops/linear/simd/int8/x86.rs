//! AVX2 and AVX-512 VNNI: 4-bit codes to bytes, and the int32 dots of a tile.
//! The functions here carry no `target_feature`, because only `inline(always)` is sure to bring them into the loop over
//! the groups; the caller must be compiled for the instruction set, which is the rule of `Lanes`.

use super::{GROUP, Int8, LANES, RUN, TileGroup};
use crate::cpu::lanes::{Avx2, Avx512};

/// Bytes of a group's 4-bit codes.
const PACKED: usize = GROUP / 2;

impl Int8 for Avx2 {
    const ROWS: usize = 2;

    #[inline(always)]
    fn tile_dots<const R: usize, const WIDE: bool>(tile: &TileGroup, x: [&[i8; GROUP]; R]) -> [Self; R] {
        // SAFETY: only code compiled for AVX2 calls methods of `Avx2`.
        unsafe { avx2::tile_dots::<R, WIDE>(tile, x) }
    }

    #[inline(always)]
    fn unpack4(rows: &[u8], stride: usize, g: usize, tile: &mut TileGroup) {
        // SAFETY: as in `tile_dots`.
        unsafe { avx2::unpack4(rows, stride, g, tile) }
    }

    #[inline(always)]
    fn packed_dots4(rows: &[u8], stride: usize, g: usize, x: &[i8; GROUP]) -> Self {
        // SAFETY: as in `tile_dots`.
        unsafe { avx2::packed_dots4(rows, stride, g, x) }
    }

    #[inline(always)]
    fn prefetch(bytes: &[u8]) {
        prefetch(bytes);
    }

    #[inline(always)]
    fn transpose_bf16(bytes: &[u8], out: &mut [[f32; LANES]]) -> usize {
        // SAFETY: as in `tile_dots`.
        unsafe { avx2::transpose_bf16(bytes, out) }
    }
}

impl Int8 for Avx512 {
    const ROWS: usize = 4;

    #[inline(always)]
    fn tile_dots<const R: usize, const WIDE: bool>(tile: &TileGroup, x: [&[i8; GROUP]; R]) -> [Self; R] {
        // SAFETY: only code compiled for AVX-512 with VNNI calls methods of `Avx512`.
        unsafe { avx512::tile_dots::<R>(tile, x) }
    }

    #[inline(always)]
    fn unpack4(rows: &[u8], stride: usize, g: usize, tile: &mut TileGroup) {
        // SAFETY: as in `tile_dots`.
        unsafe { avx512::unpack4(rows, stride, g, tile) }
    }

    #[inline(always)]
    fn packed_dots4(rows: &[u8], stride: usize, g: usize, x: &[i8; GROUP]) -> Self {
        // SAFETY: as in `tile_dots`.
        unsafe { avx512::packed_dots4(rows, stride, g, x) }
    }

    #[inline(always)]
    fn prefetch(bytes: &[u8]) {
        prefetch(bytes);
    }

    #[inline(always)]
    fn transpose_bf16(bytes: &[u8], out: &mut [[f32; LANES]]) -> usize {
        // SAFETY: as in `tile_dots`; AVX-512 includes AVX2.
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

/// Asserts that 16 rows of at least `g + 1` packed groups are there.
#[inline(always)]
fn check_packed(rows: &[u8], stride: usize, g: usize) {
    assert!(rows.len() == LANES * stride && (g + 1) * PACKED <= stride, "a tile of 4-bit codes");
}

/// Eight codes of an activation group, as one number to broadcast.
#[inline(always)]
fn run_of(x: &[i8; GROUP], run: usize) -> i64 {
    let codes = &x.as_chunks::<RUN>().0[run];
    i64::from_ne_bytes(codes.map(|code| code as u8))
}

mod avx2 {
    use std::arch::x86_64::*;

    use super::*;

    /// A run's codes of 16 rows, four rows a register.
    type Run = [__m256i; 4];

    /// A quarter of a group (16 codes) of 8 rows: dword q of every row's 16 bytes, for q = 0 … 3. Lanes hold rows 0, 1, 4, 5
    /// and 2, 3, 6, 7: `split` then leaves rows 0–3 and 4–7 together.
    ///
    /// # Safety
    /// AVX2; `at` + 16 bytes of each of the 8 rows, `stride` apart, can be read.
    #[inline(always)]
    unsafe fn dwords(at: *const u8, stride: usize) -> [__m256i; 4] {
        // SAFETY: the caller's.
        unsafe {
            let row = |row: usize| _mm_loadu_si128(at.add(row * stride).cast());
            let pair = |r: usize| _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(row(r)), row(r + 2));
            let (a, b, c, d) = (pair(0), pair(1), pair(4), pair(5));
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

    /// A dword of 8 packed codes per row to bytes: rows 0–3 and 4–7.
    ///
    /// # Safety
    /// AVX2.
    #[inline(always)]
    unsafe fn split(dwords: __m256i) -> [__m256i; 2] {
        // SAFETY: the caller's.
        unsafe {
            let nibble = _mm256_set1_epi8(15);
            let even = _mm256_and_si256(dwords, nibble);
            let odd = _mm256_and_si256(_mm256_srli_epi16::<4>(dwords), nibble);
            [_mm256_unpacklo_epi8(even, odd), _mm256_unpackhi_epi8(even, odd)]
        }
    }

    /// # Safety
    /// AVX2.
    #[inline(always)]
    pub unsafe fn unpack4(rows: &[u8], stride: usize, g: usize, tile: &mut TileGroup) {
        check_packed(rows, stride, g);
        for half in 0..2 {
            for piece in 0..2 {
                // SAFETY: inside the 16 rows, as checked; the stores fill 64 of a run's 128 bytes.
                unsafe {
                    let at = rows.as_ptr().add(half * 8 * stride + g * PACKED + piece * 16);
                    let dwords = dwords(at, stride);
                    for q in 0..4 {
                        let [low, high] = split(dwords[q]);
                        let run = tile[piece * 4 + q].as_mut_ptr().add(half * 64);
                        _mm256_storeu_si256(run.cast(), low);
                        _mm256_storeu_si256(run.add(32).cast(), high);
                    }
                }
            }
        }
    }

    /// Row by row: a byte's low nibble is an even code, its high one the next odd one, so the activations are split so too.
    ///
    /// # Safety
    /// AVX2.
    #[inline(always)]
    pub unsafe fn packed_dots4(rows: &[u8], stride: usize, g: usize, x: &[i8; GROUP]) -> Avx2 {
        check_packed(rows, stride, g);
        // SAFETY: inside the 16 rows, as checked.
        unsafe {
            let at = rows.as_ptr().add(g * PACKED);
            let (even, odd) = even_odd(x);
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

    /// Codes at even and at odd places of a group.
    ///
    /// # Safety
    /// AVX2.
    #[inline(always)]
    pub unsafe fn even_odd(x: &[i8; GROUP]) -> (__m256i, __m256i) {
        // SAFETY: the caller's; the loads take the group's 64 bytes.
        unsafe {
            let half = |half: usize| _mm256_loadu_si256(x.as_ptr().add(half * 32).cast());
            let (first, second) = (half(0), half(1));
            let byte = _mm256_set1_epi16(255);
            let even = _mm256_packus_epi16(_mm256_and_si256(first, byte), _mm256_and_si256(second, byte));
            let odd = _mm256_packus_epi16(_mm256_srli_epi16::<8>(first), _mm256_srli_epi16::<8>(second));
            (_mm256_permute4x64_epi64::<0b11_01_10_00>(even), _mm256_permute4x64_epi64::<0b11_01_10_00>(odd))
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
            let two = |a, b| _mm256_add_epi16(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
            let four = |[a, b, c, d]: Run| {
                let (ab, cd) = (two(a, b), two(c, d));
                let sums = _mm256_add_epi16(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
                _mm256_madd_epi16(sums, _mm256_set1_epi16(1))
            };
            let [a, b, c, d, e, f, g, h] = sums;
            let (low, high) = (four([a, b, c, d]), four([e, f, g, h]));
            _mm256_add_epi32(
                _mm256_permute2x128_si256::<0x20>(low, high),
                _mm256_permute2x128_si256::<0x31>(low, high),
            )
        }
    }

    /// # Safety
    /// AVX2.
    #[inline(always)]
    pub unsafe fn tile_dots<const R: usize, const WIDE: bool>(tile: &TileGroup, x: [&[i8; GROUP]; R]) -> [Avx2; R] {
        // SAFETY: the caller's; the loads take a run's 128 bytes.
        unsafe {
            let zero = _mm256_setzero_si256();
            let (mut low, mut high) = ([[zero; 4]; R], [[zero; 4]; R]);
            for (run, codes) in tile.iter().enumerate() {
                let mut rows = [zero; 4];
                for (i, rows) in rows.iter_mut().enumerate() {
                    *rows = _mm256_loadu_si256(codes.as_ptr().add(i * 32).cast());
                }
                if WIDE {
                    // Products of codes above 15 could overflow int16, so the two halves of a code go apart.
                    let nibble = _mm256_set1_epi8(15);
                    let mut tops = rows;
                    for (rows, tops) in rows.iter_mut().zip(&mut tops) {
                        *tops = _mm256_and_si256(_mm256_srli_epi16::<4>(*rows), nibble);
                        *rows = _mm256_and_si256(*rows, nibble);
                    }
                    add_run(&mut high, tops, run, x);
                }
                add_run(&mut low, rows, run, x);
            }
            let mut dots = [Avx2([_mm256_setzero_ps(); 2]); R];
            for (r, dot) in dots.iter_mut().enumerate() {
                let (mut sums, tops) = (totals(low[r]), totals(high[r]));
                for (sum, top) in sums.iter_mut().zip(tops) {
                    *sum = _mm256_add_epi32(*sum, _mm256_slli_epi32::<4>(top));
                }
                *dot = to_f32(sums);
            }
            dots
        }
    }

    /// Adds one run of 16 rows to the sums of every activation group.
    ///
    /// # Safety
    /// AVX2.
    #[inline(always)]
    unsafe fn add_run<const R: usize>(sums: &mut [Run; R], rows: Run, run: usize, x: [&[i8; GROUP]; R]) {
        for r in 0..R {
            // SAFETY: the caller's.
            unsafe {
                let x = _mm256_set1_epi64x(run_of(x[r], run));
                for i in 0..4 {
                    sums[r][i] = add_products(sums[r][i], rows[i], x);
                }
            }
        }
    }

    /// Adds products of codes up to 15, in neighbouring pairs, to int16 sums. A group's 16 products of at most 15·128 fit.
    ///
    /// # Safety
    /// AVX2.
    #[inline(always)]
    unsafe fn add_products(sums: __m256i, codes: __m256i, x: __m256i) -> __m256i {
        // SAFETY: the caller's.
        unsafe { _mm256_add_epi16(sums, _mm256_maddubs_epi16(codes, x)) }
    }

    /// Four int16 sums a row, four rows a register, to one int32 a row.
    ///
    /// # Safety
    /// AVX2.
    #[inline(always)]
    unsafe fn totals([a, b, c, d]: Run) -> [__m256i; 2] {
        // SAFETY: the caller's.
        unsafe {
            let ones = _mm256_set1_epi16(1);
            let pairs = |sums| _mm256_madd_epi16(sums, ones);
            // Rows 0, 1, 4, 5 | 2, 3, 6, 7, then in order.
            let low = _mm256_hadd_epi32(pairs(a), pairs(b));
            let high = _mm256_hadd_epi32(pairs(c), pairs(d));
            [_mm256_permute4x64_epi64::<0b11_01_10_00>(low), _mm256_permute4x64_epi64::<0b11_01_10_00>(high)]
        }
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

    /// As in `avx2`, of 16 rows. 128-bit lane l holds rows 2l, 2l + 1, 8 + 2l, 9 + 2l: `split` then leaves rows 0–7 and
    /// 8–15 together.
    ///
    /// # Safety
    /// AVX-512 F; `at` + 16 bytes of each of the 16 rows, `stride` apart, can be read.
    #[inline(always)]
    unsafe fn dwords(at: *const u8, stride: usize) -> [__m512i; 4] {
        // SAFETY: the caller's.
        unsafe {
            let row = |row: usize| _mm_loadu_si128(at.add(row * stride).cast());
            let four = |r: usize| {
                let lanes = _mm512_castsi128_si512(row(r));
                let lanes = _mm512_inserti32x4::<1>(lanes, row(r + 2));
                let lanes = _mm512_inserti32x4::<2>(lanes, row(r + 4));
                _mm512_inserti32x4::<3>(lanes, row(r + 6))
            };
            let (a, b, c, d) = (four(0), four(1), four(8), four(9));
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

    /// A dword of 8 packed codes per row to bytes: rows 0–7 and 8–15.
    ///
    /// # Safety
    /// AVX-512 F and BW.
    #[inline(always)]
    unsafe fn split(dwords: __m512i) -> [__m512i; 2] {
        // SAFETY: the caller's.
        unsafe {
            let nibble = _mm512_set1_epi8(15);
            let even = _mm512_and_si512(dwords, nibble);
            let odd = _mm512_and_si512(_mm512_srli_epi16::<4>(dwords), nibble);
            [_mm512_unpacklo_epi8(even, odd), _mm512_unpackhi_epi8(even, odd)]
        }
    }

    /// # Safety
    /// AVX-512 F and BW.
    #[inline(always)]
    pub unsafe fn unpack4(rows: &[u8], stride: usize, g: usize, tile: &mut TileGroup) {
        check_packed(rows, stride, g);
        for piece in 0..2 {
            // SAFETY: inside the 16 rows, as checked; the stores fill a run's 128 bytes.
            unsafe {
                let at = rows.as_ptr().add(g * PACKED + piece * 16);
                for (run, dwords) in tile[piece * 4..].iter_mut().zip(&dwords(at, stride)) {
                    let [low, high] = split(*dwords);
                    _mm512_storeu_si512(run.as_mut_ptr().cast(), low);
                    _mm512_storeu_si512(run.as_mut_ptr().add(64).cast(), high);
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
        check_packed(rows, stride, g);
        // SAFETY: inside the 16 rows, as checked; AVX-512 includes AVX2.
        unsafe {
            let at = rows.as_ptr().add(g * PACKED);
            let (even, odd) = avx2::even_odd(x);
            let (even, odd) = (_mm512_broadcast_i64x4(even), _mm512_broadcast_i64x4(odd));
            let nibble = _mm512_set1_epi8(15);
            let row = |row: usize| _mm256_loadu_si256(at.add(row * stride).cast());
            let pair = |r: usize| {
                let codes = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(row(r)), row(r + 8));
                let low = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_and_si512(codes, nibble), even);
                _mm512_dpbusd_epi32(low, _mm512_and_si512(_mm512_srli_epi16::<4>(codes), nibble), odd)
            };
            let two = |a, b| _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
            let four = |r: usize| {
                let (ab, cd) = (two(pair(r), pair(r + 1)), two(pair(r + 2), pair(r + 3)));
                _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd))
            };
            // 128-bit lanes hold rows 0–3 twice and 8–11 twice; 4–7 twice and 12–15 twice.
            let (a, b) = (four(0), four(4));
            let sums = _mm512_add_epi32(
                _mm512_shuffle_i32x4::<0b10_00_10_00>(a, b),
                _mm512_shuffle_i32x4::<0b11_01_11_01>(a, b),
            );
            Avx512([_mm512_cvtepi32_ps(_mm512_shuffle_i32x4::<0b11_01_10_00>(sums, sums))])
        }
    }

    /// Codes may take all of a byte: VNNI adds in int32.
    ///
    /// # Safety
    /// AVX-512 F, BW and VNNI.
    #[inline(always)]
    pub unsafe fn tile_dots<const R: usize>(tile: &TileGroup, x: [&[i8; GROUP]; R]) -> [Avx512; R] {
        // SAFETY: the caller's; the loads take a run's 128 bytes.
        unsafe {
            let mut sums = [[_mm512_setzero_si512(); 2]; R];
            for (run, codes) in tile.iter().enumerate() {
                let codes = codes.as_ptr();
                let (low, high) = (_mm512_loadu_si512(codes.cast()), _mm512_loadu_si512(codes.add(64).cast()));
                for r in 0..R {
                    let x = _mm512_set1_epi64(run_of(x[r], run));
                    sums[r][0] = _mm512_dpbusd_epi32(sums[r][0], low, x);
                    sums[r][1] = _mm512_dpbusd_epi32(sums[r][1], high, x);
                }
            }
            let mut dots = [Avx512([_mm512_setzero_ps()]); R];
            for (dot, sums) in dots.iter_mut().zip(&sums) {
                *dot = totals(*sums);
            }
            dots
        }
    }

    /// Two int32 sums a row, eight rows a register, to one f32 a row.
    ///
    /// # Safety
    /// AVX-512 F.
    #[inline(always)]
    unsafe fn totals([a, b]: [__m512i; 2]) -> Avx512 {
        // SAFETY: the caller's.
        unsafe {
            // Adding neighbours leaves rows 2l, 2l + 1, 8 + 2l, 9 + 2l in 128-bit lane l.
            let (a, b) = (_mm512_castsi512_ps(a), _mm512_castsi512_ps(b));
            let first = _mm512_castps_si512(_mm512_shuffle_ps::<0b10_00_10_00>(a, b));
            let second = _mm512_castps_si512(_mm512_shuffle_ps::<0b11_01_11_01>(a, b));
            let order = _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
            let dots = _mm512_permutexvar_epi32(order, _mm512_add_epi32(first, second));
            Avx512([_mm512_cvtepi32_ps(dots)])
        }
    }
}
