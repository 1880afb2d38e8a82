//! `quantize_rows` of one row, on every instruction set.

use crate::cpu::isa::multiversion;
use crate::cpu::lanes::{LANES, Lanes, ROUND};
use crate::ops::quantize_rows::GROUP;

multiversion! {
    /// One row: `x` `[K]` → `codes` `[K]`, `scales` and `sums` `[K / 64]`. A group of zeros has scale 0; one with a NaN
    /// or an infinity has scale and sum NaN, and codes 0.
    pub fn quantize_row(x: &[f32], codes: &mut [i8], scales: &mut [f32], sums: &mut [f32]) = row_body;
}

#[inline(always)]
fn row_body<V: Lanes>(x: &[f32], codes: &mut [i8], scales: &mut [f32], sums: &mut [f32]) {
    let (groups, rest) = x.as_chunks::<GROUP>();
    assert!(rest.is_empty(), "a row is whole groups of {GROUP}");
    assert_eq!([codes.len(), scales.len(), sums.len()], [x.len(), groups.len(), groups.len()]);
    let results = scales.iter_mut().zip(sums).zip(codes.as_chunks_mut().0);
    for (x, ((scale, sum), codes)) in groups.iter().zip(results) {
        (*scale, *sum) = group::<V>(x, codes);
    }
}

/// Codes of one group; its scale and `scale · Σ code`.
#[inline(always)]
fn group<V: Lanes>(x: &[f32; GROUP], codes: &mut [i8; GROUP]) -> (f32, f32) {
    let runs = x.as_chunks::<LANES>().0;
    let (mut max, mut odd) = (V::splat(0.0), V::splat(0.0));
    for x in runs {
        let x = V::load(x);
        max = x.abs().max(max);
        // 0, or NaN for what is not finite: a maximum would lose it, and codes cannot say it.
        odd = odd.add(x.sub(x));
    }
    let scale = max.max_lane() / 127.0 + odd.sum();
    if scale == 0.0 {
        *codes = [0; GROUP];
        return (0.0, 0.0);
    }
    let (divisor, zero) = (V::splat(scale), V::splat(0.0));
    let mut rounded = [0.0; GROUP];
    for (x, rounded) in runs.iter().zip(rounded.as_chunks_mut().0) {
        let q = V::load(x).div(divisor);
        // The two signs are clamped apart because that makes a NaN 0: both clamps then yield their constants.
        let positive = q.max(zero).min(V::splat(127.0));
        let negative = q.min(zero).max(V::splat(-127.0));
        positive.add(negative).add(V::splat(ROUND)).store(rounded);
    }
    // The nearest integer stands in the low bits.
    let (evens, odds) = codes.split_at_mut(GROUP / 2);
    for ((even, odd), pair) in evens.iter_mut().zip(odds).zip(rounded.as_chunks::<2>().0) {
        (*even, *odd) = (pair[0].to_bits() as i8, pair[1].to_bits() as i8);
    }
    let total: i32 = codes.iter().map(|&c| i32::from(c)).sum();
    (scale, scale * total as f32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::isa::Isa;
    use crate::cpu::lanes::tests::{numbers, same_bits};
    use crate::ops::quantize_rows::place;

    fn quantize(isa: Isa, x: &[f32]) -> (Vec<i8>, Vec<f32>, Vec<f32>) {
        let groups = x.len() / GROUP;
        let mut out = (vec![99; x.len()], vec![9.0; groups], vec![9.0; groups]);
        quantize_row(isa, x, &mut out.0, &mut out.1, &mut out.2);
        out
    }

    #[test]
    fn codes_are_the_definition_on_every_set() {
        for magnitude in [1.0, 1e-30, 3e37, 1e-43, 0.0] {
            let x: Vec<f32> = numbers(1024, 7).iter().map(|x| x * magnitude).collect();
            for isa in Isa::available() {
                let (codes, scales, sums) = quantize(isa, &x);
                for (g, x) in x.chunks(GROUP).enumerate() {
                    let scale = x.iter().fold(0.0f32, |m, x| m.max(x.abs())) / 127.0;
                    let codes = &codes[g * GROUP..][..GROUP];
                    for (i, &x) in x.iter().enumerate() {
                        let code = codes[place(i)];
                        let want = if scale == 0.0 { 0.0 } else { (x / scale).round_ties_even().clamp(-127.0, 127.0) };
                        assert_eq!(f32::from(code), want, "{} {x} / {scale}", isa.name());
                    }
                    let total: i32 = codes.iter().map(|&c| i32::from(c)).sum();
                    assert_eq!((scales[g], sums[g]), (scale, scale * total as f32));
                }
            }
        }
    }

    #[test]
    fn ties_go_to_even() {
        let mut x = [0.0; GROUP];
        x[..6].copy_from_slice(&[127.0, 0.5, 1.5, 2.5, -0.5, -1.5]);
        let codes = quantize(Isa::detect(), &x).0;
        assert_eq!(std::array::from_fn(|i| codes[place(i)]), [127, 0, 2, 2, 0, -2]);
    }

    #[test]
    fn what_is_not_finite_is_passed_on_by_the_scale_of_its_group() {
        let mut x = numbers(4 * GROUP, 8);
        x[3] = f32::from_bits(0x7fc0_0035);
        x[GROUP] = f32::NEG_INFINITY;
        x[3 * GROUP..].fill(f32::NAN);
        let (codes, scales, sums) = quantize(Isa::SCALAR, &x);
        assert_eq!((&codes[..2 * GROUP], &codes[3 * GROUP..]), (&[0; 2 * GROUP][..], &[0; GROUP][..]));
        assert!([0, 1, 3].iter().all(|group| scales[*group].is_nan() && sums[*group].is_nan()));
        assert!(scales[2].is_finite() && sums[2].is_finite());
        for isa in Isa::available() {
            let other = quantize(isa, &x);
            assert!(other.0 == codes && same_bits(&other.1, &scales) && same_bits(&other.2, &sums));
        }
    }
}
