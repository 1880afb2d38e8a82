//! `Lanes` in the registers of each instruction set. Only what an instruction does differs; the order of a sum does not.

use super::{LANES, Lanes};

/// Implements `Lanes` over as many registers as make 16 lanes, from a module of functions on one register.
macro_rules! lanes {
    ($(#[$meta:meta])* $name:ident = [$reg:ty; $n:literal] in $ops:ident $(with $nibbles:ident)?) => {
        $(#[$meta])*
        #[derive(Clone, Copy)]
        pub struct $name(
            /// The first lanes first.
            pub [$reg; $n],
        );

        impl Lanes for $name {
            lanes!(@binary $n $ops add sub mul div max min);
            lanes!(@unary $n $ops abs pow2);
            lanes!(@load $n $ops load: [f32; LANES], load_bf16: [u8; 2 * LANES], load_codes: [u8; LANES]);
            $(lanes!(@load $n $ops $nibbles: [u8; LANES / 2]);)?

            #[inline(always)]
            fn splat(x: f32) -> Self {
                // SAFETY: only code compiled for the set calls this (the trait's rule).
                Self([unsafe { $ops::splat(x) }; $n])
            }
            #[inline(always)]
            fn store(self, x: &mut [f32; LANES]) {
                for i in 0..$n {
                    // SAFETY: as for `splat`.
                    unsafe { $ops::store(&mut x.as_chunks_mut::<{ LANES / $n }>().0[i], self.0[i]) };
                }
            }
            #[inline(always)]
            fn fused(mut self, a: Self, b: Self) -> Self {
                for i in 0..$n {
                    // SAFETY: as for `splat`.
                    self.0[i] = unsafe { $ops::fused(self.0[i], a.0[i], b.0[i]) };
                }
                self
            }
            #[inline(always)]
            fn sum(self) -> f32 {
                let mut parts = self.0;
                let mut width = $n / 2;
                while width > 0 {
                    for i in 0..width {
                        // SAFETY: as for `splat`.
                        parts[i] = unsafe { $ops::add(parts[i], parts[i + width]) };
                    }
                    width /= 2;
                }
                // SAFETY: as for `splat`.
                unsafe { $ops::sum(parts[0]) }
            }
        }
    };
    (@binary $n:literal $ops:ident $($op:ident)+) => {$(
        #[inline(always)]
        fn $op(mut self, other: Self) -> Self {
            for i in 0..$n {
                // SAFETY: as for `splat`.
                self.0[i] = unsafe { $ops::$op(self.0[i], other.0[i]) };
            }
            self
        }
    )+};
    (@unary $n:literal $ops:ident $($op:ident)+) => {$(
        #[inline(always)]
        fn $op(mut self) -> Self {
            for i in 0..$n {
                // SAFETY: as for `splat`.
                self.0[i] = unsafe { $ops::$op(self.0[i]) };
            }
            self
        }
    )+};
    (@load $n:literal $ops:ident $($op:ident: [$t:ty; $len:expr]),+) => {$(
        #[inline(always)]
        fn $op(x: &[$t; $len]) -> Self {
            let mut out = Self::splat(0.0);
            for i in 0..$n {
                // SAFETY: as for `splat`.
                out.0[i] = unsafe { $ops::$op(&x.as_chunks::<{ $len / $n }>().0[i]) };
            }
            out
        }
    )+};
}

lanes! {
    /// Sixteen plain f32.
    Scalar = [f32; 16] in scalar
}

/// A lane is a register of its own.
mod scalar {
    macro_rules! ops {
        ($($name:ident($($arg:ident: $t:ty),*) -> $out:ty = $value:expr;)+) => {$(
            /// # Safety
            /// None is asked; `lanes!` calls the functions of every set as it must call those of a real one.
            #[inline(always)]
            pub unsafe fn $name($($arg: $t),*) -> $out { $value }
        )+};
    }
    ops! {
        splat(x: f32) -> f32 = x;
        add(a: f32, b: f32) -> f32 = a + b;
        sub(a: f32, b: f32) -> f32 = a - b;
        mul(a: f32, b: f32) -> f32 = a * b;
        div(a: f32, b: f32) -> f32 = a / b;
        max(a: f32, b: f32) -> f32 = if a > b { a } else { b };
        min(a: f32, b: f32) -> f32 = if a < b { a } else { b };
        fused(sum: f32, a: f32, b: f32) -> f32 = a.mul_add(b, sum);
        abs(a: f32) -> f32 = a.abs();
        pow2(a: f32) -> f32 = f32::from_bits((a.to_bits() << 23).wrapping_add(1f32.to_bits()));
        sum(a: f32) -> f32 = a;
        load(x: &[f32; 1]) -> f32 = x[0];
        load_bf16(x: &[u8; 2]) -> f32 = f32::from_bits(u32::from(u16::from_le_bytes(*x)) << 16);
        load_codes(x: &[u8; 1]) -> f32 = f32::from(x[0]);
        store(x: &mut [f32; 1], a: f32) -> () = x[0] = a;
    }
}

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m256, __m512};

#[cfg(target_arch = "x86_64")]
lanes! {
    /// Two registers of 256 bits.
    Avx2 = [__m256; 2] in avx2 with load_nibbles
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;
    pub use std::arch::x86_64::{
        _mm256_add_ps as add, _mm256_div_ps as div, _mm256_max_ps as max, _mm256_min_ps as min, _mm256_mul_ps as mul,
        _mm256_set1_ps as splat, _mm256_sub_ps as sub,
    };

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    pub fn fused(sum: __m256, a: __m256, b: __m256) -> __m256 {
        _mm256_fmadd_ps(a, b, sum)
    }
    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn abs(a: __m256) -> __m256 {
        _mm256_andnot_ps(splat(-0.0), a)
    }
    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn pow2(a: __m256) -> __m256 {
        let exponent = _mm256_slli_epi32::<23>(_mm256_castps_si256(a));
        _mm256_castsi256_ps(_mm256_add_epi32(exponent, _mm256_castps_si256(splat(1.0))))
    }
    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn sum(a: __m256) -> f32 {
        let four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    }
    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn load(x: &[f32; 8]) -> __m256 {
        // SAFETY: the array is what is read.
        unsafe { _mm256_loadu_ps(x.as_ptr()) }
    }
    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn store(x: &mut [f32; 8], a: __m256) {
        // SAFETY: the array is what is written.
        unsafe { _mm256_storeu_ps(x.as_mut_ptr(), a) };
    }
    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn load_bf16(x: &[u8; 16]) -> __m256 {
        // SAFETY: the array is what is read.
        let bits = _mm256_cvtepu16_epi32(unsafe { _mm_loadu_si128(x.as_ptr().cast()) });
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
    }
    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn load_codes(x: &[u8; 8]) -> __m256 {
        // SAFETY: the array is what is read.
        _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(unsafe { _mm_loadl_epi64(x.as_ptr().cast()) }))
    }
    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn load_nibbles(x: &[u8; 4]) -> __m256 {
        _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(nibbles(_mm_cvtsi32_si128(i32::from_le_bytes(*x)))))
    }
    /// Four-bit codes of the low 8 bytes to bytes.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn nibbles(x: __m128i) -> __m128i {
        let nibble = _mm_set1_epi8(15);
        let (even, odd) = (_mm_and_si128(x, nibble), _mm_and_si128(_mm_srli_epi16::<4>(x), nibble));
        _mm_unpacklo_epi8(even, odd)
    }
}

#[cfg(target_arch = "x86_64")]
lanes! {
    /// One register of 512 bits.
    Avx512 = [__m512; 1] in avx512 with load_nibbles
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::*;
    pub use std::arch::x86_64::{
        _mm512_abs_ps as abs, _mm512_add_ps as add, _mm512_div_ps as div, _mm512_max_ps as max, _mm512_min_ps as min,
        _mm512_mul_ps as mul, _mm512_set1_ps as splat, _mm512_sub_ps as sub,
    };

    #[inline]
    #[target_feature(enable = "avx512f")]
    pub fn fused(sum: __m512, a: __m512, b: __m512) -> __m512 {
        _mm512_fmadd_ps(a, b, sum)
    }
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub fn pow2(a: __m512) -> __m512 {
        let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(a));
        _mm512_castsi512_ps(_mm512_add_epi32(exponent, _mm512_castps_si512(splat(1.0))))
    }
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub fn sum(a: __m512) -> f32 {
        let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(a)));
        super::avx2::sum(_mm256_add_ps(_mm512_castps512_ps256(a), high))
    }
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub fn load(x: &[f32; 16]) -> __m512 {
        // SAFETY: the array is what is read.
        unsafe { _mm512_loadu_ps(x.as_ptr()) }
    }
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub fn store(x: &mut [f32; 16], a: __m512) {
        // SAFETY: the array is what is written.
        unsafe { _mm512_storeu_ps(x.as_mut_ptr(), a) };
    }
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub fn load_bf16(x: &[u8; 32]) -> __m512 {
        // SAFETY: the array is what is read.
        let bits = _mm512_cvtepu16_epi32(unsafe { _mm256_loadu_si256(x.as_ptr().cast()) });
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
    }
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub fn load_codes(x: &[u8; 16]) -> __m512 {
        // SAFETY: the array is what is read.
        _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(unsafe { _mm_loadu_si128(x.as_ptr().cast()) }))
    }
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub fn load_nibbles(x: &[u8; 8]) -> __m512 {
        // SAFETY: the array is what is read.
        let codes = super::avx2::nibbles(unsafe { _mm_loadl_epi64(x.as_ptr().cast()) });
        _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(codes))
    }
}

#[cfg(target_arch = "aarch64")]
use std::arch::aarch64::float32x4_t;

#[cfg(target_arch = "aarch64")]
lanes! {
    /// Four registers of 128 bits.
    Neon = [float32x4_t; 4] in neon with load_nibbles
}

#[cfg(target_arch = "aarch64")]
mod neon {
    use std::arch::aarch64::*;
    pub use std::arch::aarch64::{
        vabsq_f32 as abs, vaddq_f32 as add, vdivq_f32 as div, vdupq_n_f32 as splat, vfmaq_f32 as fused,
        vmulq_f32 as mul, vsubq_f32 as sub,
    };

    // Not vmaxq / vminq, which return NaN where either is NaN.
    #[inline]
    #[target_feature(enable = "neon")]
    pub fn max(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        vbslq_f32(vcgtq_f32(a, b), a, b)
    }
    #[inline]
    #[target_feature(enable = "neon")]
    pub fn min(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        vbslq_f32(vcltq_f32(a, b), a, b)
    }
    #[inline]
    #[target_feature(enable = "neon")]
    pub fn pow2(a: float32x4_t) -> float32x4_t {
        let exponent = vshlq_n_u32::<23>(vreinterpretq_u32_f32(a));
        vreinterpretq_f32_u32(vaddq_u32(exponent, vdupq_n_u32(1f32.to_bits())))
    }
    #[inline]
    #[target_feature(enable = "neon")]
    pub fn sum(a: float32x4_t) -> f32 {
        let two = vadd_f32(vget_low_f32(a), vget_high_f32(a));
        vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
    }
    #[inline]
    #[target_feature(enable = "neon")]
    pub fn load(x: &[f32; 4]) -> float32x4_t {
        // SAFETY: the array is what is read.
        unsafe { vld1q_f32(x.as_ptr()) }
    }
    #[inline]
    #[target_feature(enable = "neon")]
    pub fn store(x: &mut [f32; 4], a: float32x4_t) {
        // SAFETY: the array is what is written.
        unsafe { vst1q_f32(x.as_mut_ptr(), a) };
    }
    #[inline]
    #[target_feature(enable = "neon")]
    pub fn load_bf16(x: &[u8; 8]) -> float32x4_t {
        // SAFETY: the array is what is read.
        vreinterpretq_f32_u32(vshll_n_u16::<16>(vreinterpret_u16_u8(unsafe { vld1_u8(x.as_ptr()) })))
    }
    #[inline]
    #[target_feature(enable = "neon")]
    pub fn load_codes(x: &[u8; 4]) -> float32x4_t {
        let wide = vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(u32::from_le_bytes(*x))));
        vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide)))
    }
    #[inline]
    #[target_feature(enable = "neon")]
    pub fn load_nibbles(x: &[u8; 2]) -> float32x4_t {
        let two = vreinterpret_u8_u16(vdup_n_u16(u16::from_le_bytes(*x)));
        let codes = vzip1_u8(vand_u8(two, vdup_n_u8(15)), vshr_n_u8::<4>(two));
        vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(codes))))
    }
}
