//! Sixteen f32 lanes, the unit in which every CPU kernel adds: a kernel body is written once over `Lanes` and gives the
//! same bytes on every instruction set. Multiply and add are rounded apart unless `fused` is asked for; lanes are summed as
//! a tree.
//! Also here: the exponential and its kin, bf16 rows, and per-thread scratch.

use crate::cpu::isa::multiversion;

mod registers; // `Lanes` in the registers of each instruction set

#[cfg(target_arch = "aarch64")]
pub use registers::Neon;
pub use registers::Scalar;
#[cfg(target_arch = "x86_64")]
pub use registers::{Avx2, Avx512};

/// Lanes in one `Lanes`.
pub const LANES: usize = 16;

/// Sixteen f32 lanes in the registers of one instruction set. Only code compiled for that set may call these: the
/// bodies that `multiversion!` instantiates.
pub trait Lanes: Copy {
    /// All lanes equal.
    fn splat(x: f32) -> Self;
    /// From memory, at any alignment.
    fn load(x: &[f32; LANES]) -> Self;
    /// From bf16, little endian, at any alignment.
    fn load_bf16(x: &[u8; 2 * LANES]) -> Self;
    /// From codes of one byte.
    fn load_codes(x: &[u8; LANES]) -> Self;
    /// From codes of four bits, low half first.
    #[inline(always)]
    fn load_nibbles(x: &[u8; LANES / 2]) -> Self {
        let mut codes = [0; LANES];
        for (codes, byte) in codes.as_chunks_mut().0.iter_mut().zip(x) {
            *codes = [byte & 15, byte >> 4];
        }
        Self::load_codes(&codes)
    }
    /// To memory, at any alignment.
    fn store(self, x: &mut [f32; LANES]);
    /// Lane by lane.
    fn add(self, other: Self) -> Self;
    /// Lane by lane.
    fn sub(self, other: Self) -> Self;
    /// Lane by lane.
    fn mul(self, other: Self) -> Self;
    /// Lane by lane.
    fn div(self, other: Self) -> Self;
    /// `self > other ? self : other`, so `other` where either is NaN.
    fn max(self, other: Self) -> Self;
    /// `self + a·b`, rounded once.
    fn fused(self, a: Self, b: Self) -> Self;
    /// `self < other ? self : other`, so `other` where either is NaN.
    fn min(self, other: Self) -> Self;
    /// Without the sign.
    fn abs(self) -> Self;
    /// 2ⁿ for lanes that hold n + `ROUND`, −126 ≤ n ≤ 127.
    fn pow2(self) -> Self;
    /// Σ of the lanes: lane i + lane i + 8, then 4, 2, 1.
    fn sum(self) -> f32;

    /// Up to 16 elements; the lanes past them are 0.
    #[inline(always)]
    fn load_head(x: &[f32]) -> Self {
        let mut lanes = [0.0; LANES];
        lanes[..x.len()].copy_from_slice(x);
        Self::load(&lanes)
    }

    /// The first `x.len()` lanes.
    #[inline(always)]
    fn store_head(self, x: &mut [f32]) {
        let mut lanes = [0.0; LANES];
        self.store(&mut lanes);
        x.copy_from_slice(&lanes[..x.len()]);
    }

    /// The largest lane, of lanes without NaN.
    #[inline(always)]
    fn max_lane(self) -> f32 {
        let mut lanes = [0.0; LANES];
        self.store(&mut lanes);
        let mut width = LANES / 2;
        while width > 0 {
            for i in 0..width {
                let (a, b) = (lanes[i], lanes[i + width]);
                lanes[i] = if a > b { a } else { b };
            }
            width /= 2;
        }
        lanes[0]
    }

    /// `self + a·b`, rounded twice.
    #[inline(always)]
    fn add_product(self, a: Self, b: Self) -> Self {
        self.add(a.mul(b))
    }

    /// e^x, ≤ 2 ulp; 0 below −104, ∞ above 88.8, NaN for NaN.
    #[inline(always)]
    fn exp(self) -> Self {
        let c = Self::splat;
        // `self` comes second, so that NaN passes through both.
        let x = c(-105.0).max(self);
        let x = c(90.0).min(x);
        // Adding `ROUND` leaves the nearest integer in the low mantissa bits.
        let n = x.mul(c(std::f32::consts::LOG2_E)).add(c(ROUND)).sub(c(ROUND));
        // ln 2 in two parts; the product with the first, 9 bits long, is exact.
        let r = x.sub(n.mul(c(0.693_359_4))).sub(n.mul(c(-2.121_944_4e-4)));
        let mut p = c(1.987_569_1e-4);
        for k in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_65, 0.5] {
            p = p.mul(r).add(c(k));
        }
        let e = p.mul(r.mul(r)).add(r).add(c(1.0));
        // Two factors, so that results below the smallest normal are rounded once, by the last product.
        let half = n.mul(c(0.5)).add(c(ROUND));
        let rest = n.sub(half.sub(c(ROUND))).add(c(ROUND));
        e.mul(half.pow2()).mul(rest.pow2())
    }

    /// 1 / (1 + e^−x).
    #[inline(always)]
    fn sigmoid(self) -> Self {
        let one = Self::splat(1.0);
        one.div(one.add(Self::splat(0.0).sub(self).exp()))
    }

    /// x / (1 + e^−x).
    #[inline(always)]
    fn silu(self) -> Self {
        let one = Self::splat(1.0);
        self.div(one.add(Self::splat(0.0).sub(self).exp()))
    }
}

/// 1.5·2²³: `x + ROUND` is x rounded to an integer (ties to even) plus `ROUND`, for |x| < 2²².
pub const ROUND: f32 = 12_582_912.0;

/// The body of a function of every element: a method of `Lanes` on runs of 16, the last padded with zeros. A macro,
/// because a method handed over as a value is compiled for no instruction set.
macro_rules! elementwise {
    ($($body:ident = $method:ident;)+) => {$(
        #[inline(always)]
        fn $body<V: Lanes>(x: &[f32], out: &mut [f32]) {
            assert_eq!(x.len(), out.len());
            let ((runs, rest), (outs, out_rest)) = (x.as_chunks(), out.as_chunks_mut());
            for (x, out) in runs.iter().zip(outs) {
                V::load(x).$method().store(out);
            }
            if !rest.is_empty() {
                V::load_head(rest).$method().store_head(out_rest);
            }
        }
    )+};
}

elementwise! {
    sigmoid_body = sigmoid;
    silu_body = silu;
}

/// The sum of each.
#[inline(always)]
pub(crate) fn sums<V: Lanes, const N: usize>(lanes: [V; N]) -> [f32; N] {
    let mut sums = [0.0; N];
    for (sum, lanes) in sums.iter_mut().zip(&lanes) {
        *sum = lanes.sum();
    }
    sums
}

/// Σ a·b: lane j of 16 sums the products of elements j, j + 16, … in order; the lanes are summed as a tree.
#[inline(always)]
pub(crate) fn dots<V: Lanes, const N: usize>(a: &[f32], b: [&[f32]; N]) -> [f32; N] {
    let mut totals = [V::splat(0.0); N];
    let (runs, rest) = a.as_chunks();
    let mut other_runs = [runs; N];
    for (other, b) in other_runs.iter_mut().zip(&b) {
        *other = &b[..a.len()].as_chunks().0[..runs.len()];
    }
    for (i, a) in runs.iter().enumerate() {
        let a = V::load(a);
        for (total, b) in totals.iter_mut().zip(&other_runs) {
            *total = total.add_product(a, V::load(&b[i]));
        }
    }
    if !rest.is_empty() {
        let a = V::load_head(rest);
        for (total, b) in totals.iter_mut().zip(&b) {
            *total = total.add_product(a, V::load_head(&b[runs.len() * LANES..][..rest.len()]));
        }
    }
    sums(totals)
}

#[inline(always)]
fn sum_squares_body<V: Lanes>(x: &[f32]) -> f32 {
    dots::<V, 1>(x, [x])[0]
}

/// Little-endian bf16 at any alignment to f32.
#[inline(always)]
pub(crate) fn bf16_to_f32_body<V: Lanes>(x: &[u8], out: &mut [f32]) {
    assert_eq!(x.len(), 2 * out.len());
    let ((runs, rest), (outs, out_rest)) = (x.as_chunks(), out.as_chunks_mut());
    for (x, out) in runs.iter().zip(outs) {
        V::load_bf16(x).store(out);
    }
    for (x, out) in rest.as_chunks().0.iter().zip(out_rest) {
        *out = f32::from_bits(u32::from(u16::from_le_bytes(*x)) << 16);
    }
}

#[inline(always)]
fn f32_to_bf16_body<_V: Lanes>(x: &[f32], out: &mut [u8]) {
    assert_eq!(2 * x.len(), out.len());
    for (x, out) in x.iter().zip(out.as_chunks_mut().0) {
        let bits = x.to_bits();
        // Ties to even: half a unit less one, plus the bit that is kept last. A NaN stays one, with its sign.
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        let kept = if x.is_nan() { bits >> 16 | 0x40 } else { rounded };
        *out = (kept as u16).to_le_bytes();
    }
}

multiversion! {
    /// Σ x² in the fixed order of this file.
    pub fn sum_squares(x: &[f32]) -> f32 = sum_squares_body;
    /// 1 / (1 + e^−x), element by element.
    pub fn sigmoid(x: &[f32], out: &mut [f32]) = sigmoid_body;
    /// x / (1 + e^−x), element by element.
    pub fn silu(x: &[f32], out: &mut [f32]) = silu_body;
    /// f32 to little-endian bf16, ties to even.
    pub fn f32_to_bf16(x: &[f32], out: &mut [u8]) = f32_to_bf16_body;
}

/// One thread's working memory, of a size fixed when a plan is compiled.
#[derive(Debug)]
pub struct Scratch(Vec<f32>);

impl Scratch {
    /// Alignment, so that no register's load crosses a cache line.
    const ALIGN: usize = 64;

    /// At least `bytes` bytes.
    pub fn new(bytes: usize) -> Self {
        Self(vec![0.0; bytes.div_ceil(4) + Self::ALIGN / 4])
    }

    /// Makes it at least `bytes` bytes.
    pub fn grow(&mut self, bytes: usize) {
        let floats = bytes.div_ceil(4) + Self::ALIGN / 4;
        if self.0.len() < floats {
            self.0 = vec![0.0; floats];
        }
    }

    /// All of it, aligned to a cache line; holds whatever the last user left.
    pub(crate) fn f32s(&mut self) -> &mut [f32] {
        let start = self.0.as_ptr().align_offset(Self::ALIGN);
        &mut self.0[start..]
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::cpu::isa::Isa;

    elementwise! {
        exp_body = exp;
    }

    #[inline(always)]
    fn dot_body<V: Lanes>(a: &[f32], b: &[f32]) -> f32 {
        dots::<V, 1>(a, [b])[0]
    }

    multiversion! {
        /// Σ a·b in the fixed order of this file.
        fn dot(a: &[f32], b: &[f32]) -> f32 = dot_body;
        /// e^x, element by element.
        fn exp(x: &[f32], out: &mut [f32]) = exp_body;
        /// Little-endian bf16 at any alignment to f32.
        fn bf16_to_f32(x: &[u8], out: &mut [f32]) = bf16_to_f32_body;
    }

    /// Reproducible numbers in [−1, 1).
    pub(crate) fn numbers(count: usize, seed: u64) -> Vec<f32> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    /// The same bits; a NaN equals any NaN.
    pub(crate) fn same_bits(a: &[f32], b: &[f32]) -> bool {
        let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
        a.len() == b.len() && a.iter().zip(b).all(same)
    }

    /// Seconds that this thread has run: other work on the machine does not count.
    fn thread_seconds() -> f64 {
        let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the clock exists, and `t` is ours.
        let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut t) };
        assert_eq!(failed, 0);
        t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
    }

    /// Seconds of the fastest of some runs, after one to warm up.
    pub(crate) fn seconds(mut f: impl FnMut()) -> f64 {
        let mut run = || {
            let start = thread_seconds();
            f();
            thread_seconds() - start
        };
        let count = (0.3 / run().max(1e-6)) as usize + 3;
        (0..count).map(|_| run()).fold(f64::INFINITY, f64::min)
    }

    /// |got − want| in units of the last place of `want`.
    fn ulps(got: f32, want: f64) -> f64 {
        let nearest = want as f32;
        let unit = if nearest.is_infinite() {
            return if got == nearest { 0.0 } else { f64::INFINITY };
        } else {
            f64::from(f32::from_bits(nearest.abs().to_bits() + 1)) - f64::from(nearest.abs())
        };
        (f64::from(got) - want).abs() / unit
    }

    #[test]
    fn dot_is_the_documented_order_on_every_set() {
        for len in (0..70).chain([128, 1000, 2048]) {
            let (a, b) = (numbers(len, 1), numbers(len, 2));
            let mut lanes = [0.0f32; LANES];
            for (i, (a, b)) in a.iter().zip(&b).enumerate() {
                lanes[i % LANES] += a * b;
            }
            for width in [8, 4, 2, 1] {
                for i in 0..width {
                    lanes[i] += lanes[i + width];
                }
            }
            let exact: f64 = a.iter().zip(&b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
            assert!((f64::from(lanes[0]) - exact).abs() < 1e-4);
            for isa in Isa::available() {
                assert_eq!(dot(isa, &a, &b).to_bits(), lanes[0].to_bits(), "{} {len}", isa.name());
                assert_eq!(sum_squares(isa, &a), dot(isa, &a, &a));
            }
        }
    }

    #[test]
    fn exp_is_within_two_ulp_and_right_at_the_ends() {
        let x: Vec<f32> = (-1_050_000..900_000).map(|i| i as f32 * 1e-4).collect();
        let mut e = vec![0.0; x.len()];
        exp(Isa::detect(), &x, &mut e);
        let worst = x.iter().zip(&e).map(|(&x, &e)| ulps(e, f64::from(x).exp())).fold(0.0, f64::max);
        println!("exp: {worst:.3} ulp");
        assert!(worst <= 2.0, "{worst} ulp");
        let x = [f32::NEG_INFINITY, -1e30, -104.0, -0.0, 0.0, 88.8, 1e30, f32::INFINITY, f32::NAN];
        let mut e = [7.0; 9];
        for isa in Isa::available() {
            exp(isa, &x, &mut e);
            assert_eq!(e[..8], [0.0, 0.0, 0.0, 1.0, 1.0, f32::INFINITY, f32::INFINITY, f32::INFINITY]);
            assert!(e[8].is_nan());
        }
    }

    #[test]
    fn functions_agree_on_every_set() {
        let mut x: Vec<f32> = numbers(4099, 3).iter().map(|x| x * 110.0).collect();
        x.extend([f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, f32::MIN_POSITIVE / 8.0]);
        for f in [exp, sigmoid, silu] {
            let mut want = vec![0.0; x.len()];
            f(Isa::SCALAR, &x, &mut want);
            for isa in Isa::available() {
                let mut got = vec![0.0; x.len()];
                f(isa, &x, &mut got);
                assert!(same_bits(&got, &want), "{}", isa.name());
            }
        }
        let mut s = vec![0.0; x.len()];
        silu(Isa::detect(), &x[..4099], &mut s[..4099]);
        for (&x, &s) in x.iter().zip(&s[..4099]) {
            let want = f64::from(x) / (1.0 + (-f64::from(x)).exp());
            assert!((f64::from(s) - want).abs() <= 1e-6 * want.abs().max(1e-30), "silu({x}) = {s}, not {want}");
        }
    }

    #[test]
    fn bf16_rounds_to_even_and_comes_back() {
        let mut x = numbers(1003, 4);
        x.extend([f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, f32::MAX, 1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0]);
        let want: Vec<half::bf16> = x.iter().map(|&x| half::bf16::from_f32(x)).collect();
        for isa in Isa::available() {
            let mut bytes = vec![0; 2 * x.len() + 1];
            f32_to_bf16(isa, &x, &mut bytes[1..]);
            let got: Vec<u16> = bytes[1..].chunks(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect();
            assert_eq!(got, want.iter().map(|w| w.to_bits()).collect::<Vec<_>>());
            let mut back = vec![0.0; x.len()];
            bf16_to_f32(isa, &bytes[1..], &mut back);
            assert!(same_bits(&back, &want.iter().map(|w| w.to_f32()).collect::<Vec<_>>()));
        }
    }
}
