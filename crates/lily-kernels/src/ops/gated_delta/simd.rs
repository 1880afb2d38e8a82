//! The recurrence of one value head (or some of its rows) over the tokens of one sequence, on every instruction set.

use std::ops::Range;

use crate::cpu::columns::ColumnsMut;
use crate::cpu::isa::multiversion;
use crate::cpu::lanes::{LANES, Lanes};

/// One row of some width per token of the step, `stride` elements apart.
#[derive(Debug, Clone, Copy)]
pub struct Strided<'a> {
    /// From the first element of the step's row 0.
    pub data: &'a [f32],
    /// Elements from one row to the next.
    pub stride: usize,
}

impl<'a> Strided<'a> {
    /// The first `width` elements of a token's row.
    #[inline(always)]
    fn row(self, token: usize, width: usize) -> &'a [f32] {
        &self.data[token * self.stride..][..width]
    }
}

/// Inputs of one value head's recurrence.
#[derive(Debug, Clone)]
pub struct Scan<'a> {
    /// Rows of the step that are this sequence's tokens, in order.
    pub tokens: Range<usize>,
    /// `[T, Dk]`: the key head's normed queries.
    pub q: Strided<'a>,
    /// `[T, Dk]`: the key head's normed keys.
    pub k: Strided<'a>,
    /// `[T, rows]`: the values of the state rows computed here.
    pub v: Strided<'a>,
    /// `[T, 1]`.
    pub decay: Strided<'a>,
    /// `[T, 1]`.
    pub beta: Strided<'a>,
    /// Elements of a state row (Dk).
    pub k_dim: usize,
}

multiversion! {
    /// Carries state rows `[rows, Dk]` from `state_in` through all tokens to `state_out`, and writes `[T, rows]` of y to
    /// the step's rows `tokens` of `out`. Rows do not depend on each other, nor on how tokens are cut into chunks.
    pub fn scan(scan: &Scan, state_in: &[f32], state_out: &mut [f32], out: &mut ColumnsMut) = scan_body;
}

/// State rows that go through the tokens together: enough sums in flight to hide the latency of addition.
const BLOCK: usize = 4;

#[inline(always)]
fn scan_body<V: Lanes>(scan: &Scan, state_in: &[f32], state_out: &mut [f32], out: &mut ColumnsMut) {
    assert!(scan.k_dim > 0 && state_in.len().is_multiple_of(scan.k_dim));
    assert_eq!(out.width(), state_in.len() / scan.k_dim);
    state_out.copy_from_slice(state_in);
    let mut rows = state_out.chunks_exact_mut(scan.k_dim);
    let mut first = 0;
    while rows.len() >= BLOCK {
        // `chunks_exact_mut` has this many left, so no default is ever used.
        let block: [&mut [f32]; BLOCK] = std::array::from_fn(|_| rows.next().unwrap_or_default());
        through_tokens::<V, BLOCK>(scan, first, block, out);
        first += BLOCK;
    }
    for row in rows {
        through_tokens::<V, 1>(scan, first, [row], out);
        first += 1;
    }
}

/// `N` state rows, from row `first` on, through all tokens.
#[inline(always)]
fn through_tokens<V: Lanes, const N: usize>(
    scan: &Scan,
    first: usize,
    mut state: [&mut [f32]; N],
    out: &mut ColumnsMut,
) {
    for token in scan.tokens.clone() {
        let k = scan.k.row(token, scan.k_dim);
        let q = scan.q.row(token, scan.k_dim);
        let v = &scan.v.row(token, first + N)[first..];
        let decay = scan.decay.row(token, 1)[0];
        let beta = scan.beta.row(token, 1)[0];
        let seen = decayed_dots::<V, N>(&state, decay, k);
        let delta: [f32; N] = std::array::from_fn(|i| beta * (v[i] - seen[i]));
        let y = update_dots::<V, N>(&mut state, decay, delta, k, q);
        out.row(token)[first..first + N].copy_from_slice(&y);
    }
}

/// (decay·s)·k of each row. The decayed state is not stored: `update_dots` decays it again, to the same bits.
#[inline(always)]
fn decayed_dots<V: Lanes, const N: usize>(
    state: &[&mut [f32]; N],
    decay: f32,
    k: &[f32],
) -> [f32; N] {
    let decay = V::splat(decay);
    let mut sums = [V::splat(0.0); N];
    let (runs, rest) = k.as_chunks::<LANES>();
    for (j, k) in runs.iter().enumerate() {
        let k = V::load(k);
        for (sum, s) in sums.iter_mut().zip(state) {
            *sum = sum.add_product(V::load(&s.as_chunks().0[j]).mul(decay), k);
        }
    }
    if !rest.is_empty() {
        let k = V::load_head(rest);
        for (sum, s) in sums.iter_mut().zip(state) {
            *sum = sum.add_product(V::load_head(s.as_chunks::<LANES>().1).mul(decay), k);
        }
    }
    sums.map(V::sum)
}

/// s ← decay·s + δ·k, and s·q, of each row.
#[inline(always)]
fn update_dots<V: Lanes, const N: usize>(
    state: &mut [&mut [f32]; N],
    decay: f32,
    delta: [f32; N],
    k: &[f32],
    q: &[f32],
) -> [f32; N] {
    let decay = V::splat(decay);
    let mut sums = [V::splat(0.0); N];
    let ((k_runs, k_rest), (q_runs, q_rest)) = (k.as_chunks::<LANES>(), q.as_chunks::<LANES>());
    for (j, (k, q)) in k_runs.iter().zip(q_runs).enumerate() {
        let (k, q) = (V::load(k), V::load(q));
        for i in 0..N {
            let s = &mut state[i].as_chunks_mut().0[j];
            let new = V::load(s).mul(decay).add_product(V::splat(delta[i]), k);
            new.store(s);
            sums[i] = sums[i].add_product(new, q);
        }
    }
    if !k_rest.is_empty() {
        let (k, q) = (V::load_head(k_rest), V::load_head(q_rest));
        for i in 0..N {
            let s = state[i].as_chunks_mut::<LANES>().1;
            let new = V::load_head(s)
                .mul(decay)
                .add_product(V::splat(delta[i]), k);
            new.store_head(s);
            sums[i] = sums[i].add_product(new, q);
        }
    }
    sums.map(V::sum)
}
