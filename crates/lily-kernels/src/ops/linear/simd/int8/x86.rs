//! AVX2 and AVX-512 VNNI: 4-bit codes to bytes, and the int32 dots of a tile.

use std::arch::x86_64::*;

use super::{GROUP, Int8, LANES, PACKED, RUN, TileGroup};
use crate::cpu::lanes::{Avx2, Avx512};

impl Int8 for Avx2 {
    #[inline(always)]
    fn tile_dots<const R: usize, const WIDE: bool>(tile: &TileGroup, x: [&[i8; GROUP]; R]) -> [Self; R] {
        // SAFETY: only code compiled for AVX2 calls methods of `Avx2` (the rule of `Lanes`).
        unsafe {
            let low = avx2::half_dots::<R, WIDE>(tile, 0, x);
            let high = avx2::half_dots::<R, WIDE>(tile, 1, x);
            std::array::from_fn(|r| Self::from_registers([low[r], high[r]]))
        }
    }

    #[inline(always)]
    fn unpack4(rows: &[u8], stride: usize, g: usize, tile: &mut TileGroup) {
        for half in 0..2 {
            // SAFETY: as in `tile_dots`.
            let codes = unsafe { avx2::codes4(rows, stride, g, half) };
            for (run, [a, b]) in tile.iter_mut().zip(codes) {
                let (eight, _) = run[half * LANES / 2 * RUN..].as_chunks_mut::<32>();
                // SAFETY: as in `tile_dots`; each store is to an array of 32 bytes.
                unsafe {
                    _mm256_storeu_si256(eight[0].as_mut_ptr().cast(), a);
                    _mm256_storeu_si256(eight[1].as_mut_ptr().cast(), b);
                }
            }
        }
    }

    #[inline(always)]
    fn packed_dots4(rows: &[u8], stride: usize, g: usize, x: &[i8; GROUP]) -> Self {
        // SAFETY: as in `tile_dots`.
        Self::from_registers(unsafe {
            [avx2::packed_half_dots4(rows, stride, g, 0, x), avx2::packed_half_dots4(rows, stride, g, 1, x)]
        })
    }

    #[inline(always)]
    fn transpose_bf16(bytes: &[u8], out: &mut [[f32; LANES]]) -> usize {
        // SAFETY: as in `tile_dots`.
        unsafe { avx2::transpose_bf16(bytes, out) }
    }
}

impl Int8 for Avx512 {
    #[inline(always)]
    fn tile_dots<const R: usize, const WIDE: bool>(tile: &TileGroup, x: [&[i8; GROUP]; R]) -> [Self; R] {
        // SAFETY: only code compiled for AVX-512 with VNNI calls methods of `Avx512` (the rule of `Lanes`).
        unsafe { avx512::dots::<R>(|run| avx512::load(&tile[run]), x) }.map(|d| Self::from_registers([d]))
    }

    #[inline(always)]
    fn unpack4(rows: &[u8], stride: usize, g: usize, tile: &mut TileGroup) {
        // SAFETY: as in `tile_dots`.
        let codes = unsafe { avx512::codes4(rows, stride, g) };
        for (run, [a, b]) in tile.iter_mut().zip(codes) {
            let (sixteen, _) = run.as_chunks_mut::<64>();
            // SAFETY: as in `tile_dots`; each store is to an array of 64 bytes.
            unsafe {
                _mm512_storeu_si512(sixteen[0].as_mut_ptr().cast(), a);
                _mm512_storeu_si512(sixteen[1].as_mut_ptr().cast(), b);
            }
        }
    }

    #[inline(always)]
    fn packed_dots4(rows: &[u8], stride: usize, g: usize, x: &[i8; GROUP]) -> Self {
        // SAFETY: as in `tile_dots`.
        let [dots] = unsafe {
            let codes = avx512::codes4(rows, stride, g);
            avx512::dots::<1>(|run| codes[run], [x])
        };
        Self::from_registers([dots])
    }

    #[inline(always)]
    fn transpose_bf16(bytes: &[u8], out: &mut [[f32; LANES]]) -> usize {
        // SAFETY: as in `tile_dots`; AVX-512 includes AVX2.
        unsafe { avx2::transpose_bf16(bytes, out) }
    }
}

/// Address of the 16-byte half `half` of group `g` of row `row`.
#[inline(always)]
fn packed_at(rows: &[u8], stride: usize, g: usize, row: usize, half: usize) -> *const __m128i {
    rows.as_ptr().wrapping_add(row * stride + g * PACKED + half * 16).cast()
}

/// Eight codes of an activation group.
#[inline(always)]
fn run_of(x: &[i8; GROUP], run: usize) -> i64 {
    i64::from_ne_bytes(x.as_chunks().0[run].map(|code| code as u8))
}

mod avx2 {
    use super::*;

    /// The codes of 8 rows (half `half` of the 16) of group `g`: for each run of 8 codes, rows 0–3 and rows 4–7.
    /// Every row's 32 bytes are 8 dwords of 8 codes; the dwords are transposed, then split into bytes.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn codes4(rows: &[u8], stride: usize, g: usize, half: usize) -> [[__m256i; 2]; GROUP / RUN] {
        assert!(rows.len() == LANES * stride && (g + 1) * PACKED <= stride);
        let zero = _mm256_setzero_si256();
        let mut out = [[zero; 2]; GROUP / RUN];
        for piece in 0..2 {
            // Lanes hold rows 0, 1, 4, 5 and 2, 3, 6, 7: the split into bytes then leaves rows 0–3 and 4–7 together.
            let pair = |row: usize| {
                let row = half * LANES / 2 + row;
                // SAFETY: by the assertion, 16 bytes of group g of rows `row` and `row + 2` lie in `rows`.
                unsafe {
                    let (low, high) =
                        (packed_at(rows, stride, g, row, piece), packed_at(rows, stride, g, row + 2, piece));
                    _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(_mm_loadu_si128(low)), _mm_loadu_si128(high))
                }
            };
            let quads = transpose4([pair(0), pair(1), pair(4), pair(5)]);
            for (out, dwords) in out[piece * 4..].iter_mut().zip(quads) {
                let nibble = _mm256_set1_epi8(15);
                let even = _mm256_and_si256(dwords, nibble);
                let odd = _mm256_and_si256(_mm256_srli_epi16::<4>(dwords), nibble);
                *out = [_mm256_unpacklo_epi8(even, odd), _mm256_unpackhi_epi8(even, odd)];
            }
        }
        out
    }

    /// 4×4 dwords in each 128-bit lane.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn transpose4([a, b, c, d]: [__m256i; 4]) -> [__m256i; 4] {
        let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
        let (ab_high, cd_high) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
        [
            _mm256_unpacklo_epi64(ab, cd),
            _mm256_unpackhi_epi64(ab, cd),
            _mm256_unpacklo_epi64(ab_high, cd_high),
            _mm256_unpackhi_epi64(ab_high, cd_high),
        ]
    }

    /// Dots of half a tile (8 rows) with `R` activation groups.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn half_dots<const R: usize, const WIDE: bool>(
        tile: &TileGroup,
        half: usize,
        x: [&[i8; GROUP]; R],
    ) -> [__m256; R] {
        let eight = |run: usize| {
            let (arrays, _) = tile[run][half * LANES / 2 * RUN..].as_chunks::<32>();
            [load(&arrays[0]), load(&arrays[1])]
        };
        let nibble = _mm256_set1_epi8(15);
        if !WIDE {
            return small_dots(eight, x).map(|d| _mm256_cvtepi32_ps(d));
        }
        // Products of codes above 15 could overflow int16, so the two halves of a code go apart.
        let low = small_dots(|run| eight(run).map(|w| _mm256_and_si256(w, nibble)), x);
        let high = small_dots(|run| eight(run).map(|w| _mm256_and_si256(_mm256_srli_epi16::<4>(w), nibble)), x);
        std::array::from_fn(|r| _mm256_cvtepi32_ps(_mm256_add_epi32(low[r], _mm256_slli_epi32::<4>(high[r]))))
    }

    /// Int32 dots of 8 rows, whose codes are at most 15, with `R` activation groups. `eight` gives a run's codes of rows
    /// 0–3 and 4–7. Int16 holds the sum of a group: 16 products of at most 15·128.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn small_dots<const R: usize>(eight: impl Fn(usize) -> [__m256i; 2], x: [&[i8; GROUP]; R]) -> [__m256i; R] {
        let mut sums = [[_mm256_setzero_si256(); 2]; R];
        for run in 0..GROUP / RUN {
            let rows = eight(run);
            for (sums, x) in sums.iter_mut().zip(x) {
                let x = _mm256_set1_epi64x(run_of(x, run));
                for (sum, rows) in sums.iter_mut().zip(rows) {
                    *sum = _mm256_add_epi16(*sum, _mm256_maddubs_epi16(rows, x));
                }
            }
        }
        let ones = _mm256_set1_epi16(1);
        sums.map(|[a, b]| {
            // Two partial sums a row; adding neighbours leaves rows 0, 1, 4, 5 | 2, 3, 6, 7.
            let pairs = _mm256_hadd_epi32(_mm256_madd_epi16(a, ones), _mm256_madd_epi16(b, ones));
            _mm256_permute4x64_epi64::<0b11_01_10_00>(pairs)
        })
    }

    /// Dots of 8 rows of 4-bit codes, straight from their bytes, with one activation group.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn packed_half_dots4(rows: &[u8], stride: usize, g: usize, half: usize, x: &[i8; GROUP]) -> __m256 {
        let codes = codes4(rows, stride, g, half);
        let [dots] = small_dots(|run| codes[run], [x]);
        _mm256_cvtepi32_ps(dots)
    }

    /// See `Int8::transpose_bf16`; 8 groups at a time.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn transpose_bf16(bytes: &[u8], out: &mut [[f32; LANES]]) -> usize {
        let groups = out.len();
        assert_eq!(bytes.len(), LANES * groups * 2);
        let (eights, _) = out.as_chunks_mut::<8>();
        for (i, eight) in eights.iter_mut().enumerate() {
            for half in 0..2 {
                let row = |row: usize| {
                    let first = ((half * 8 + row) * groups + i * 8) * 2;
                    // SAFETY: 8 groups of this row lie in `bytes`, by the assertion and `i` < groups / 8.
                    unsafe { _mm_loadu_si128(bytes.as_ptr().add(first).cast()) }
                };
                let columns = transpose8([row(0), row(1), row(2), row(3), row(4), row(5), row(6), row(7)]);
                for (out, column) in eight.iter_mut().zip(columns) {
                    let wide = _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(column));
                    // SAFETY: 8 of the 16 elements, from 0 or 8 on.
                    unsafe { _mm256_storeu_ps(out.as_mut_ptr().add(half * 8), _mm256_castsi256_ps(wide)) };
                }
            }
        }
        eights.len() * 8
    }

    /// 8×8 words.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn transpose8(r: [__m128i; 8]) -> [__m128i; 8] {
        let quads = |a, b, c, d| {
            let (low_ab, high_ab) = (_mm_unpacklo_epi16(a, b), _mm_unpackhi_epi16(a, b));
            let (low_cd, high_cd) = (_mm_unpacklo_epi16(c, d), _mm_unpackhi_epi16(c, d));
            [
                _mm_unpacklo_epi32(low_ab, low_cd),
                _mm_unpackhi_epi32(low_ab, low_cd),
                _mm_unpacklo_epi32(high_ab, high_cd),
                _mm_unpackhi_epi32(high_ab, high_cd),
            ]
        };
        let (low, high) = (quads(r[0], r[1], r[2], r[3]), quads(r[4], r[5], r[6], r[7]));
        let pair = |i: usize| [_mm_unpacklo_epi64(low[i], high[i]), _mm_unpackhi_epi64(low[i], high[i])];
        let [[a, b], [c, d], [e, f], [g, h]] = [pair(0), pair(1), pair(2), pair(3)];
        [a, b, c, d, e, f, g, h]
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn load(bytes: &[u8; 32]) -> __m256i {
        // SAFETY: 32 bytes, at any alignment.
        unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
    }
}

mod avx512 {
    use super::*;

    /// The codes of 16 rows of group `g`: for each run of 8 codes, rows 0–7 and rows 8–15. As in `avx2`, twice as wide.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    pub fn codes4(rows: &[u8], stride: usize, g: usize) -> [[__m512i; 2]; GROUP / RUN] {
        assert!(rows.len() == LANES * stride && (g + 1) * PACKED <= stride);
        let mut out = [[_mm512_setzero_si512(); 2]; GROUP / RUN];
        for piece in 0..2 {
            // 128-bit lane l holds rows 2l, 2l + 1, 8 + 2l, 9 + 2l: the split into bytes leaves rows 0–7 and 8–15 together.
            let four = |row: usize| {
                let at = |lane: usize| packed_at(rows, stride, g, row + 2 * lane, piece);
                // SAFETY: by the assertion, 16 bytes of group g of rows `row`, `row` + 2, + 4 and + 6 lie in `rows`.
                unsafe {
                    let lanes = _mm512_castsi128_si512(_mm_loadu_si128(at(0)));
                    let lanes = _mm512_inserti32x4::<1>(lanes, _mm_loadu_si128(at(1)));
                    let lanes = _mm512_inserti32x4::<2>(lanes, _mm_loadu_si128(at(2)));
                    _mm512_inserti32x4::<3>(lanes, _mm_loadu_si128(at(3)))
                }
            };
            let quads = transpose4([four(0), four(1), four(8), four(9)]);
            for (out, dwords) in out[piece * 4..].iter_mut().zip(quads) {
                let nibble = _mm512_set1_epi8(15);
                let even = _mm512_and_si512(dwords, nibble);
                let odd = _mm512_and_si512(_mm512_srli_epi16::<4>(dwords), nibble);
                *out = [_mm512_unpacklo_epi8(even, odd), _mm512_unpackhi_epi8(even, odd)];
            }
        }
        out
    }

    /// 4×4 dwords in each 128-bit lane.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn transpose4([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
        let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
        let (ab_high, cd_high) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
        [
            _mm512_unpacklo_epi64(ab, cd),
            _mm512_unpackhi_epi64(ab, cd),
            _mm512_unpacklo_epi64(ab_high, cd_high),
            _mm512_unpackhi_epi64(ab_high, cd_high),
        ]
    }

    /// Int32 dots, as f32, of 16 rows with `R` activation groups; `sixteen` gives a run's codes of rows 0–7 and 8–15.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    pub fn dots<const R: usize>(sixteen: impl Fn(usize) -> [__m512i; 2], x: [&[i8; GROUP]; R]) -> [__m512; R] {
        let mut sums = [[_mm512_setzero_si512(); 2]; R];
        for run in 0..GROUP / RUN {
            let rows = sixteen(run);
            for (sums, x) in sums.iter_mut().zip(x) {
                let x = _mm512_set1_epi64(run_of(x, run));
                for (sum, rows) in sums.iter_mut().zip(rows) {
                    *sum = _mm512_dpbusd_epi32(*sum, rows, x);
                }
            }
        }
        let order = _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
        sums.map(|[a, b]| {
            // Two partial sums a row; adding neighbours leaves rows 2l, 2l + 1, 8 + 2l, 9 + 2l in 128-bit lane l.
            let (a, b) = (_mm512_castsi512_ps(a), _mm512_castsi512_ps(b));
            let first = _mm512_castps_si512(_mm512_shuffle_ps::<0b10_00_10_00>(a, b));
            let second = _mm512_castps_si512(_mm512_shuffle_ps::<0b11_01_11_01>(a, b));
            _mm512_cvtepi32_ps(_mm512_permutexvar_epi32(order, _mm512_add_epi32(first, second)))
        })
    }

    /// A run of an unpacked tile.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub fn load(run: &[u8; LANES * RUN]) -> [__m512i; 2] {
        // SAFETY: two loads of 64 bytes from an array of 128.
        unsafe { [_mm512_loadu_si512(run.as_ptr().cast()), _mm512_loadu_si512(run.as_ptr().add(64).cast())] }
    }
}
