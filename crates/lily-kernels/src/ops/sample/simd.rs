//! CPU kernel. Each filter keeps the first ids by descending logit, so it is known by the last id that it keeps: that
//! one is found by selection, and the rest is passes over the vocabulary in the order of ids. Nothing sorts it.

use super::{NO_TOKEN, uniform};
use crate::cpu::isa::{Isa, multiversion};
use crate::cpu::lanes::{LANES, Lanes};
use crate::inputs::{LogitEdit, SamplingInputs};

#[cfg(test)]
mod tests;

/// Weights that are summed together. A draw looks for its block first, then for its place in it.
const BLOCK: usize = 4096;
/// What selection gathers beyond the k that it keeps, before it selects again.
const SLACK: usize = 512;

/// A token that may still be chosen: weight (a logit or an unnormalised probability, no NaN) and id (or place among
/// what an earlier filter kept) in one number. Likelier is smaller, and of equals the lower id is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate(u64);

impl Candidate {
    fn new(weight: f32, id: usize) -> Self {
        // + 0.0 makes −0 the same as 0. Then the bits of positive numbers ascend, and those of negative ones descend.
        let bits = (weight + 0.0).to_bits();
        let descending = if bits >> 31 == 0 { !bits ^ (1 << 31) } else { bits };
        Self(u64::from(descending) << 32 | id as u64)
    }

    fn weight(self) -> f32 {
        let descending = (self.0 >> 32) as u32;
        f32::from_bits(if descending >> 31 == 0 { !descending ^ (1 << 31) } else { descending })
    }

    const fn id(self) -> u32 {
        self.0 as u32
    }
}

/// What the choice of one token works in.
#[derive(Debug, Default)]
pub struct Scratch {
    /// Edited logits, then weights.
    row: Vec<f32>,
    /// Ids of the weights, where top-k left fewer than all.
    ids: Vec<u32>,
    candidates: Vec<Candidate>,
}

impl Scratch {
    /// Makes it enough for this many logits.
    pub fn grow(&mut self, vocab: usize) {
        if self.row.len() < vocab {
            self.row.resize(vocab, 0.0);
            self.ids.resize(vocab, 0);
            self.candidates.resize(vocab, Candidate(0));
        }
    }
}

/// What one row's token is chosen from.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    pub logits: &'a [f32],
    pub edits: &'a [LogitEdit],
    /// As in `StepInputs::masks`.
    pub mask: Option<&'a [u32]>,
}

/// The next token of one row; `NO_TOKEN` if that is no distribution. `scratch` is enough for it.
pub fn choose(isa: Isa, row: Row, how: &SamplingInputs, scratch: &mut Scratch) -> u32 {
    let Row { logits, edits, mask } = row;
    let logits = &logits[..logits.len().min(how.vocab_limit as usize)];
    let is_greedy = how.temperature == 0.0;
    if is_greedy && edits.is_empty() && mask.is_none() {
        return Largest::of(logits).id();
    }
    let Scratch { row, ids, candidates } = scratch;
    let row = &mut row[..logits.len()];
    row.copy_from_slice(logits);
    for edit in edits {
        // Padding is nobody's to edit.
        if let Some(logit) = row.get_mut(edit.id as usize) {
            *logit = edit.apply(*logit);
        }
    }
    if let Some(mask) = mask {
        keep_masked(row, mask);
    }
    let mut largest = Largest::of(row);
    // No edit makes a number of what is none, but a mask hides it. An edit may make an infinity of a number, but that is
    // what the caller asked for.
    largest.all_numbers = (largest.all_numbers && mask.is_none()) || Largest::of(logits).all_numbers;
    if is_greedy || largest.id() == NO_TOKEN {
        return largest.id();
    }
    let max = largest.logit;
    let kept = keep_top_k(row, how.top_k as usize, ids, candidates);
    let weights = &mut row[..kept.unwrap_or(logits.len())];
    weigh(isa, weights, max, how.temperature);
    keep_top_p(weights, how.top_p, candidates);
    // The largest weight is 1.
    weights.iter_mut().filter(|w| **w < how.min_p).for_each(|w| *w = 0.0);
    let place = draw(weights, uniform(how.seed, how.counter));
    if kept.is_some() { ids[place] } else { place as u32 }
}

/// Makes −∞ of the logits that the mask lacks.
fn keep_masked(row: &mut [f32], mask: &[u32]) {
    for (run, &bits) in row.chunks_mut(32).zip(mask) {
        if bits == 0 {
            run.fill(f32::NEG_INFINITY);
        } else if bits != u32::MAX {
            for (i, logit) in run.iter_mut().enumerate() {
                *logit = if bits >> i & 1 == 0 { f32::NEG_INFINITY } else { *logit };
            }
        }
    }
}

/// What one pass over a row tells.
struct Largest {
    /// The lowest id with the largest logit; NaN is never the largest.
    place: usize,
    /// −∞ if there is none.
    logit: f32,
    /// There is neither NaN nor +∞.
    all_numbers: bool,
}

impl Largest {
    fn of(logits: &[f32]) -> Self {
        let (runs, rest) = logits.as_chunks::<LANES>();
        let mut lanes = [f32::NEG_INFINITY; LANES];
        // Bits rather than truth values, which the compiler would not keep in vectors.
        let mut odd = [0u32; LANES];
        for run in runs {
            for ((max, odd), &logit) in lanes.iter_mut().zip(&mut odd).zip(run) {
                *max = if logit > *max { logit } else { *max };
                *odd |= if logit.is_nan() { u32::MAX } else { 0 };
            }
        }
        let max = lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |max, &x| if x > max { x } else { max });
        let is_max = |&logit: &f32| logit == max && max > f32::NEG_INFINITY;
        let run = runs.iter().position(|run| run.iter().fold(false, |any, logit| any | is_max(logit)));
        let from = run.unwrap_or(runs.len()) * LANES;
        let place = logits[from..].iter().position(is_max).map_or(0, |i| from + i);
        let all_numbers = max < f32::INFINITY && odd == [0; LANES] && !rest.iter().any(|logit| logit.is_nan());
        Self { place, logit: max, all_numbers }
    }

    fn id(&self) -> u32 {
        if self.all_numbers && self.logit > f32::NEG_INFINITY { self.place as u32 } else { NO_TOKEN }
    }
}

/// Calls `f` with each value from `floor` on and its place, in order. `f` returns the floor from there on.
#[inline(always)]
fn scan(values: &[f32], mut floor: f32, mut f: impl FnMut(usize, f32) -> f32) {
    for (i, run) in values.chunks(LANES).enumerate() {
        if run.iter().fold(false, |any, &value| any | (value >= floor)) {
            for (j, &value) in run.iter().enumerate() {
                if value >= floor {
                    floor = f(i * LANES + j, value);
                }
            }
        }
    }
}

/// Moves the `top_k` largest logits to the front, in the order of their ids, and these to `ids`. None if that is all.
fn keep_top_k(row: &mut [f32], top_k: usize, ids: &mut [u32], candidates: &mut [Candidate]) -> Option<usize> {
    if top_k == 0 || top_k >= row.len() {
        return None;
    }
    let room = row.len().min(2 * top_k.max(SLACK));
    let mut len = 0;
    let mut floor = f32::MIN;
    scan(row, floor, |id, weight| {
        candidates[len] = Candidate::new(weight, id);
        len += 1;
        if len == room {
            let (_, cut, _) = candidates[..len].select_nth_unstable(top_k - 1);
            // An equal logit would come too late: ids ascend.
            (len, floor) = (top_k, cut.weight().next_up());
        }
        floor
    });
    if len < top_k {
        return None;
    }
    let (_, cut, _) = candidates[..len].select_nth_unstable(top_k - 1);
    let (cut, mut len) = (*cut, 0);
    scan(row, cut.weight(), |id, weight| {
        if Candidate::new(weight, id) <= cut {
            candidates[len] = Candidate::new(weight, id);
            len += 1;
        }
        cut.weight()
    });
    for (i, c) in candidates[..len].iter().enumerate() {
        (row[i], ids[i]) = (c.weight(), c.id());
    }
    Some(len)
}

/// Logits to probabilities up to a common factor: the largest becomes 1; NaN and −∞ become 0.
fn weigh(isa: Isa, row: &mut [f32], max: f32, temperature: f32) {
    if max == f32::INFINITY {
        // ∞ − ∞ is no number; an infinite logit is as likely as can be.
        row.iter_mut().for_each(|x| *x = f32::from(u8::from(*x == max)));
    } else {
        exp_row(isa, row, max, temperature);
    }
}

#[inline(always)]
fn exp_row_body<V: Lanes>(row: &mut [f32], max: f32, temperature: f32) {
    let (runs, rest) = row.as_chunks_mut();
    for run in runs {
        exp_lanes(V::load(run), max, temperature).store(run);
    }
    if !rest.is_empty() {
        exp_lanes(V::load_head(rest), max, temperature).store_head(rest);
    }
}

#[inline(always)]
fn exp_lanes<V: Lanes>(x: V, max: f32, temperature: f32) -> V {
    x.sub(V::splat(max)).div(V::splat(temperature)).exp().max(V::splat(0.0))
}

multiversion! {
    /// e^((x − max) / temperature), in place; 0 for NaN.
    fn exp_row(row: &mut [f32], max: f32, temperature: f32) = exp_row_body;
}

/// Sum of at most `BLOCK` weights: eight running sums, so that it does not wait for itself.
fn block_total(weights: &[f32]) -> f64 {
    let (runs, rest) = weights.as_chunks::<8>();
    let mut sums = [0.0f64; 8];
    for run in runs {
        for (sum, &weight) in sums.iter_mut().zip(run) {
            *sum += f64::from(weight);
        }
    }
    sums.iter().sum::<f64>() + rest.iter().map(|w| f64::from(*w)).sum::<f64>()
}

fn total(weights: &[f32]) -> f64 {
    weights.chunks(BLOCK).map(block_total).sum()
}

/// Zeroes what is beyond the smallest set of the likeliest that holds `p` of the probability.
fn keep_top_p(weights: &mut [f32], p: f32, candidates: &mut [Candidate]) {
    if p >= 1.0 {
        return;
    }
    let total = total(weights);
    let enough = f64::from(p) * total;
    // All weights below this together are less than what the set may leave out, so none of them is in it. A little
    // less, because sums are rounded.
    let floor = (0.999 * (total - enough) / weights.len() as f64) as f32;
    let mut len = 0;
    scan(weights, floor, |place, weight| {
        candidates[len] = Candidate::new(weight, place);
        len += 1;
        floor
    });
    let cut = last_of_nucleus(&mut candidates[..len], enough);
    for (place, weight) in weights.iter_mut().enumerate() {
        let is_kept = cut.is_none_or(|cut| Candidate::new(*weight, place) <= cut);
        *weight = if is_kept { *weight } else { 0.0 };
    }
}

/// The candidate with which the sum over the likeliest reaches `enough`. Halves what is in question at each turn.
fn last_of_nucleus(candidates: &mut [Candidate], enough: f64) -> Option<Candidate> {
    let sum_of = |candidates: &[Candidate]| candidates.iter().map(|c| f64::from(c.weight())).sum::<f64>();
    let (mut from, mut to, mut sum) = (0, candidates.len(), 0.0);
    while to - from > 32 {
        let half = (to - from) / 2;
        candidates[from..to].select_nth_unstable(half);
        let likelier = sum_of(&candidates[from..from + half]);
        if sum + likelier >= enough {
            to = from + half;
        } else {
            (from, sum) = (from + half, sum + likelier);
        }
    }
    candidates[from..to].sort_unstable();
    let reaches = |c: &&Candidate| {
        sum += f64::from(c.weight());
        sum >= enough
    };
    // Rounding may leave the sum short of all; then all are in.
    candidates[from..to].iter().find(reaches).or(candidates[..to].last()).copied()
}

/// Where the running sum passes the share `u` of the total.
fn draw(weights: &[f32], u: f32) -> usize {
    let mut left = f64::from(u) * total(weights);
    let mut end = 0;
    for block in weights.chunks(BLOCK) {
        let sum = block_total(block);
        if left < sum {
            for (i, &weight) in block.iter().enumerate() {
                left -= f64::from(weight);
                if left < 0.0 {
                    return end + i;
                }
            }
            end += block.len();
            break;
        }
        (left, end) = (left - sum, end + block.len());
    }
    // Rounding left a little: it belongs to the last that may be chosen.
    weights[..end].iter().rposition(|w| *w > 0.0).unwrap_or(0)
}
