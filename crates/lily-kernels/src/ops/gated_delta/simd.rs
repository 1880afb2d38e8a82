//! The recurrence of one value head (or some of its rows) over the tokens of one sequence, on every instruction set.

use std::ops::Range;

use crate::cpu::columns::ColumnsMut;
use crate::cpu::isa::multiversion;
use crate::cpu::lanes::{self, LANES, Lanes};

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
        let mut delta = [0.0; N];
        for ((delta, v), seen) in delta.iter_mut().zip(v).zip(seen) {
            *delta = beta * (v - seen);
        }
        let y = update_dots::<V, N>(&mut state, decay, delta, k, q);
        out.row(token)[first..first + N].copy_from_slice(&y);
    }
}

/// (decay·s)·k of each row. The decayed state is not stored: `update_dots` decays it again, to the same bits.
#[inline(always)]
fn decayed_dots<V: Lanes, const N: usize>(state: &[&mut [f32]; N], decay: f32, k: &[f32]) -> [f32; N] {
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
    lanes::sums(sums)
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
            let new = V::load_head(s).mul(decay).add_product(V::splat(delta[i]), k);
            new.store_head(s);
            sums[i] = sums[i].add_product(new, q);
        }
    }
    lanes::sums(sums)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::isa::Isa;
    use crate::cpu::lanes::tests::{numbers, same_bits, seconds};

    /// Seven tokens; `rows` value rows in rows of 3 + `rows` + 2 elements.
    struct Case {
        k_dim: usize,
        rows: usize,
        qk: Vec<f32>,
        v: Vec<f32>,
        gates: Vec<f32>,
        state: Vec<f32>,
    }

    const TOKENS: usize = 7;

    impl Case {
        fn new(k_dim: usize, rows: usize) -> Self {
            let unit = |n, seed| numbers(n, seed).iter().map(|x| x.abs()).collect();
            Self {
                k_dim,
                rows,
                qk: numbers(TOKENS * 2 * k_dim, 1).iter().map(|x| x / (k_dim as f32).sqrt()).collect(),
                v: numbers(TOKENS * (rows + 5), 2),
                gates: unit(TOKENS * 2, 3),
                state: numbers(rows * k_dim, 4),
            }
        }

        /// y and the final state, the tokens cut at `cut`, the rows at `split`.
        fn run(&self, isa: Isa, cut: usize, split: usize) -> (Vec<f32>, Vec<f32>) {
            let mut y = vec![-7.0; TOKENS * self.rows];
            let mut state = self.state.clone();
            for (tokens, rows) in [(0..cut, 0..split), (0..cut, split..self.rows), (cut..TOKENS, 0..self.rows)] {
                let strided = |data, stride| Strided { data, stride };
                let inputs = Scan {
                    tokens,
                    q: strided(&self.qk[..], 2 * self.k_dim),
                    k: strided(&self.qk[self.k_dim..], 2 * self.k_dim),
                    v: strided(&self.v[3 + rows.start..], self.rows + 5),
                    decay: strided(&self.gates[..], 2),
                    beta: strided(&self.gates[1..], 2),
                    k_dim: self.k_dim,
                };
                let part = rows.start * self.k_dim..rows.end * self.k_dim;
                let before = state[part.clone()].to_vec();
                let view = ColumnsMut::new(&mut y, self.rows);
                // SAFETY: the only view in use.
                let mut view = unsafe { view.split(rows) };
                scan(isa, &inputs, &before, &mut state[part], &mut view);
            }
            (y, state)
        }
    }

    #[test]
    fn every_set_and_any_cut_give_the_same_bytes() {
        for (k_dim, rows) in [(128, 8), (64, 5), (16, 1), (24, 7), (5, 3)] {
            let case = Case::new(k_dim, rows);
            let want = case.run(Isa::SCALAR, TOKENS, rows);
            for isa in Isa::available() {
                for (cut, split) in [(TOKENS, rows), (1, 1), (3, rows / 2), (0, 0)] {
                    let got = case.run(isa, cut, split);
                    assert!(same_bits(&got.0, &want.0) && same_bits(&got.1, &want.1), "{} {k_dim}×{rows}", isa.name());
                }
            }
        }
    }

    #[test]
    fn it_is_the_recurrence() {
        let case = Case::new(24, 7);
        let (y, state) = case.run(Isa::detect(), 2, 3);
        let mut s: Vec<f64> = case.state.iter().map(|&x| f64::from(x)).collect();
        for t in 0..TOKENS {
            let [q, k] = [0, 1].map(|i| &case.qk[(2 * t + i) * 24..][..24]);
            let [decay, beta] = [0, 1].map(|i| f64::from(case.gates[2 * t + i]));
            for (row, s) in s.chunks_mut(24).enumerate() {
                s.iter_mut().for_each(|s| *s *= decay);
                let dot = |s: &[f64], x: &[f32]| s.iter().zip(x).map(|(s, &x)| s * f64::from(x)).sum::<f64>();
                let delta = beta * (f64::from(case.v[t * 12 + 3 + row]) - dot(s, k));
                s.iter_mut().zip(k).for_each(|(s, &k)| *s += delta * f64::from(k));
                assert!((dot(s, q) - f64::from(y[t * 7 + row])).abs() < 1e-5);
            }
        }
        assert!(s.iter().zip(&state).all(|(s, &got)| (s - f64::from(got)).abs() < 1e-5));
    }

    #[test]
    #[ignore = "a measurement"]
    fn rates() {
        let (dim, rows, tokens) = (128, 128, 64);
        let (qk, gates, before) = (numbers(2 * dim, 1), [0.9, 0.5], numbers(rows * dim, 2));
        let every = |data| Strided { data, stride: 0 };
        let inputs = Scan {
            tokens: 0..tokens,
            q: every(&qk[..dim]),
            k: every(&qk[dim..]),
            v: every(&before),
            decay: every(&gates[..1]),
            beta: every(&gates[1..]),
            k_dim: dim,
        };
        let (mut after, mut y) = (before.clone(), vec![0.0; tokens * rows]);
        for isa in Isa::available() {
            let time = seconds(|| scan(isa, &inputs, &before, &mut after, &mut ColumnsMut::new(&mut y, rows)));
            let flops = (7 * tokens * rows * dim) as f64;
            println!("{:7} gated_delta {rows}×{dim}: {:6.1} Gflop/s", isa.name(), flops / time / 1e9);
        }
    }
}
