//! `quantize_rows` of one row, on every instruction set.

use crate::cpu::isa::multiversion;
use crate::cpu::lanes::{LANES, Lanes, ROUND};
use crate::ops::quantize_rows::GROUP;

multiversion! {
    /// One row: `x` `[K]` → `codes` `[K]`, `scales` and `sums` `[K / 64]`. A group of zeros has scale 0, a NaN code 0.
    /// The scale of a group with an infinity is infinite and its codes are 0.
    pub fn quantize_row(x: &[f32], codes: &mut [i8], scales: &mut [f32], sums: &mut [f32]) = row_body;
}

#[inline(always)]
fn row_body<V: Lanes>(x: &[f32], codes: &mut [i8], scales: &mut [f32], sums: &mut [f32]) {
    let (groups, rest) = x.as_chunks::<GROUP>();
    assert!(rest.is_empty(), "a row is whole groups of {GROUP}");
    assert_eq!(
        [codes.len(), scales.len(), sums.len()],
        [x.len(), groups.len(), groups.len()]
    );
    let results = scales.iter_mut().zip(sums).zip(codes.as_chunks_mut().0);
    for (x, ((scale, sum), codes)) in groups.iter().zip(results) {
        (*scale, *sum) = group::<V>(x, codes);
    }
}

/// Codes of one group; its scale and `scale · Σ code`.
#[inline(always)]
fn group<V: Lanes>(x: &[f32; GROUP], codes: &mut [i8; GROUP]) -> (f32, f32) {
    let runs = x.as_chunks::<LANES>().0;
    let max = runs
        .iter()
        .fold(V::splat(0.0), |max, x| V::load(x).abs().max(max));
    let scale = max.max_lane() / 127.0;
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
    for (code, rounded) in codes.iter_mut().zip(&rounded) {
        *code = rounded.to_bits() as i8;
    }
    let total: i32 = codes.iter().map(|&c| i32::from(c)).sum();
    (scale, scale * total as f32)
}
