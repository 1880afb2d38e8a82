//! CPU kernel.

use super::uniform;
use crate::inputs::SamplingInputs;

/// A token that may still be chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Logit, then unnormalised probability.
    weight: f32,
    id: u32,
}

impl Candidate {
    /// Placeholder for preallocation.
    pub const EMPTY: Self = Self { weight: 0.0, id: 0 };

    /// Likelier first; of equals, the lower id first.
    fn order(a: &Self, b: &Self) -> std::cmp::Ordering {
        b.weight.total_cmp(&a.weight).then(a.id.cmp(&b.id))
    }
}

/// The next token of one row. `scratch` holds at least as many candidates as there are logits.
pub fn choose(logits: &[f32], how: &SamplingInputs, scratch: &mut [Candidate]) -> u32 {
    let logits = &logits[..logits.len().min(how.vocab_limit as usize)];
    if how.temperature == 0.0 {
        return arg_max(logits);
    }
    let candidates = collect(logits, how, scratch);
    if candidates.is_empty() {
        return arg_max(logits);
    }
    let kept = top_p(candidates, how.top_p);
    let kept = min_p(kept, how.min_p);
    draw(kept, uniform(how.seed, how.counter))
}

/// Greedy choice; NaN is never chosen while anything else is there.
fn arg_max(logits: &[f32]) -> u32 {
    let mut best = (f32::NEG_INFINITY, 0);
    for (id, &logit) in logits.iter().enumerate() {
        if logit > best.0 {
            best = (logit, id as u32);
        }
    }
    best.1
}

/// Candidates after temperature and top-k, likeliest first, with weights relative to the likeliest.
fn collect<'a>(logits: &[f32], how: &SamplingInputs, scratch: &'a mut [Candidate]) -> &'a mut [Candidate] {
    let mut len = 0;
    for (id, &logit) in logits.iter().enumerate() {
        if logit > f32::NEG_INFINITY {
            scratch[len] = Candidate { weight: logit, id: id as u32 };
            len += 1;
        }
    }
    let mut kept = &mut scratch[..len];
    let top_k = how.top_k as usize;
    if top_k > 0 && top_k < len {
        kept.select_nth_unstable_by(top_k - 1, Candidate::order);
        kept = &mut kept[..top_k];
    }
    kept.sort_unstable_by(Candidate::order);
    let max = kept.first().map_or(0.0, |c| c.weight);
    for c in kept.iter_mut() {
        // An infinite logit would give ∞ − ∞; it is as likely as can be.
        c.weight = if c.weight == max { 1.0 } else { ((c.weight - max) / how.temperature).exp() };
    }
    kept
}

fn total(candidates: &[Candidate]) -> f64 {
    candidates.iter().map(|c| f64::from(c.weight)).sum()
}

/// The shortest prefix that holds `p` of the probability.
fn top_p(candidates: &mut [Candidate], p: f32) -> &mut [Candidate] {
    if p >= 1.0 {
        return candidates;
    }
    let want = f64::from(p) * total(candidates);
    let mut sum = 0.0;
    let reached = candidates.iter().position(|c| {
        sum += f64::from(c.weight);
        sum >= want
    });
    let len = reached.map_or(candidates.len(), |i| i + 1);
    &mut candidates[..len]
}

/// Those at least `p` times as likely as the likeliest (whose weight is 1).
fn min_p(candidates: &mut [Candidate], p: f32) -> &mut [Candidate] {
    let len = candidates.partition_point(|c| c.weight >= p).max(1);
    &mut candidates[..len]
}

fn draw(candidates: &[Candidate], u: f32) -> u32 {
    let mut left = f64::from(u) * total(candidates);
    for c in candidates {
        left -= f64::from(c.weight);
        if left < 0.0 {
            return c.id;
        }
    }
    candidates[candidates.len() - 1].id
}
