//! Reference of `sample`.

use std::cmp::Ordering;

use super::{NO_TOKEN, Sample, uniform};
use crate::inputs::{LogitEdit, SamplingInputs, StepInputs};
use crate::reference::Memory;

/// Row by row.
pub fn run(op: &Sample, mem: &mut Memory, inputs: &StepInputs) {
    for (row, sampling) in inputs.sampling.iter().enumerate().take(inputs.outputs.len()) {
        let logits = mem.row(&op.logits, row);
        let id = if is_distribution(&logits, sampling) {
            let mask = inputs.mask(row, op.logits.cols);
            choose(&masked(edited(logits, inputs.edits(row)), mask), sampling)
        } else {
            NO_TOKEN
        };
        mem.set_ids(&op.tokens, row, &[id]);
    }
}

/// The logits after the edits.
pub(super) fn edited(mut logits: Vec<f64>, edits: &[LogitEdit]) -> Vec<f64> {
    for edit in edits {
        let Some(logit) = logits.get_mut(edit.id as usize) else { continue };
        *logit += f64::from(edit.bias);
        let repetition = f64::from(edit.repetition);
        *logit = if *logit > 0.0 { *logit / repetition } else { *logit * repetition };
        *logit -= f64::from(edit.penalty);
    }
    logits
}

/// The logits with −∞ wherever the mask lacks an id.
pub(super) fn masked(mut logits: Vec<f64>, mask: Option<&[u32]>) -> Vec<f64> {
    for (id, logit) in logits.iter_mut().enumerate() {
        if mask.is_some_and(|mask| mask[id / 32] >> (id % 32) & 1 == 0) {
            *logit = f64::NEG_INFINITY;
        }
    }
    logits
}

/// Whether a token may be drawn from these logits, before the edits: an edit that makes one infinite is the caller's.
pub(super) fn is_distribution(logits: &[f64], sampling: &SamplingInputs) -> bool {
    let exist = &logits[..logits.len().min(sampling.vocab_limit as usize)];
    exist.iter().all(|logit| *logit < f64::INFINITY) && exist.iter().any(|logit| *logit > f64::NEG_INFINITY)
}

/// The chosen id; `NO_TOKEN` if no logit can be chosen.
pub(super) fn choose(logits: &[f64], sampling: &SamplingInputs) -> u32 {
    let ids = 0..sampling.vocab_limit.min(logits.len() as u32);
    // False for NaN too.
    let mut ranked: Vec<(u32, f64)> =
        ids.map(|id| (id, logits[id as usize])).filter(|(_, logit)| *logit > f64::NEG_INFINITY).collect();
    // The sort is stable, so equal logits stay in the order of their ids.
    ranked.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap_or(Ordering::Equal));
    let Some(&(first, largest)) = ranked.first() else {
        return NO_TOKEN;
    };
    if sampling.temperature == 0.0 {
        return first;
    }
    if sampling.top_k > 0 {
        ranked.truncate(sampling.top_k as usize);
    }
    // Probabilities up to a common factor, which nothing below depends on.
    let temperature = f64::from(sampling.temperature);
    for (_, weight) in &mut ranked {
        *weight = if *weight == largest { 1.0 } else { ((*weight - largest) / temperature).exp() };
    }
    ranked.truncate(nucleus(&ranked, f64::from(sampling.top_p)));
    // The largest weight is 1.
    ranked.retain(|(_, weight)| *weight >= f64::from(sampling.min_p));
    ranked.sort_by_key(|(id, _)| *id);
    draw(&ranked, f64::from(uniform(sampling.seed, sampling.counter)))
}

/// Length of the smallest prefix that holds the share `top_p` of the total.
fn nucleus(ranked: &[(u32, f64)], top_p: f64) -> usize {
    let enough = top_p * ranked.iter().map(|(_, weight)| weight).sum::<f64>();
    let mut sum = 0.0;
    let reaches = |(_, weight): &(u32, f64)| {
        sum += weight;
        sum >= enough
    };
    ranked.iter().position(reaches).map_or(ranked.len(), |last| last + 1)
}

/// Walks the list until the sum passes the share `u` of the total.
fn draw(kept: &[(u32, f64)], u: f64) -> u32 {
    let target = u * kept.iter().map(|(_, weight)| weight).sum::<f64>();
    let mut sum = 0.0;
    let passes = |(_, weight): &&(u32, f64)| {
        sum += weight;
        sum > target
    };
    kept.iter().find(passes).or(kept.last()).map_or(0, |(id, _)| *id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampling(temperature: f32) -> SamplingInputs {
        SamplingInputs {
            temperature,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed: 7,
            counter: 0,
            vocab_limit: 100,
            mask: None,
        }
    }

    /// How often each id is drawn over many counters.
    fn shares(logits: &[f64], s: SamplingInputs) -> Vec<f64> {
        let mut hits = vec![0.0; logits.len()];
        let draws = 20_000;
        for counter in 0..draws {
            hits[choose(logits, &SamplingInputs { counter, ..s }) as usize] += 1.0 / draws as f64;
        }
        hits
    }

    #[test]
    fn greedy_takes_the_lowest_of_the_largest_and_skips_what_may_not_be_chosen() {
        let (nan, inf) = (f64::NAN, f64::NEG_INFINITY);
        assert_eq!(choose(&[0.0, 3.0, nan, 3.0, 9.0], &SamplingInputs { vocab_limit: 4, ..sampling(0.0) }), 1);
        assert_eq!(choose(&[nan, inf, nan], &sampling(0.0)), NO_TOKEN);
        assert_eq!(choose(&[nan, inf, -5.0], &sampling(1.0)), 2);
    }

    #[test]
    fn rows_of_what_is_no_number_are_no_distribution() {
        let (nan, inf) = (f64::NAN, f64::INFINITY);
        let is = |logits: &[f64]| is_distribution(logits, &SamplingInputs { vocab_limit: 3, ..sampling(0.0) });
        assert!(is(&[1.0, -inf, 2.0, nan, inf]), "padding does not count");
        assert!(!is(&[1.0, nan, 2.0]) && !is(&[1.0, inf, 2.0]) && !is(&[-inf, -inf, -inf, 1.0]) && !is(&[]));
    }

    #[test]
    fn draws_follow_the_probabilities() {
        let logits = [1.0f64.ln(), 2.0f64.ln(), 5.0f64.ln()];
        for (share, expected) in shares(&logits, sampling(1.0)).iter().zip([0.125, 0.25, 0.625]) {
            assert!((share - expected).abs() < 0.01, "{share} for {expected}");
        }
        // At temperature ½ probabilities are squared: 1, 4, 25.
        for (share, expected) in shares(&logits, sampling(0.5)).iter().zip([1.0 / 30.0, 4.0 / 30.0, 25.0 / 30.0]) {
            assert!((share - expected).abs() < 0.01, "{share} for {expected}");
        }
    }

    #[test]
    fn a_draw_walks_the_kept_in_the_order_of_ids() {
        let logits = [1.0f64.ln(), 5.0f64.ln(), 2.0f64.ln()];
        for counter in 0..50 {
            let s = SamplingInputs { counter, ..sampling(1.0) };
            let u = uniform(s.seed, s.counter);
            let want = if u < 0.125 {
                0
            } else if u < 0.75 {
                1
            } else {
                2
            };
            assert_eq!(choose(&logits, &s), want, "{u}");
        }
    }

    #[test]
    fn edits_add_then_scale_then_subtract() {
        let edit = |id, bias, repetition, penalty| LogitEdit { row: 0, id, bias, repetition, penalty };
        let edits =
            [edit(0, 1.0, 2.0, 0.25), edit(1, 1.0, 2.0, 0.25), edit(3, -3.0, 1.0, 0.0), edit(9, 100.0, 1.0, 0.0)];
        assert_eq!(edited(vec![3.0, -3.0, 4.0, 1.0], &edits), [1.75, -4.25, 4.0, -2.0]);
        assert_eq!(edits.map(|e| e.apply(3.0)), [1.75, 1.75, 0.0, 103.0]);
        assert_eq!(edits[1].apply(-3.0), -4.25);
        assert_eq!(edits[1].apply(f32::NEG_INFINITY), f32::NEG_INFINITY);
    }

    #[test]
    fn a_mask_comes_before_everything() {
        let logits = vec![1.0f64.ln(), 2.0f64.ln(), f64::INFINITY, 5.0f64.ln(), 3.0];
        let greedy = |bits: u32| choose(&masked(logits.clone(), Some(&[bits])), &sampling(0.0));
        assert_eq!([0b11111, 0b11011, 0b01011, 0b00001, 0].map(greedy), [2, 4, 3, 0, NO_TOKEN]);
        let masked = masked(logits, Some(&[0b01011]));
        assert_eq!(choose(&masked, &SamplingInputs { top_k: 1, ..sampling(1.0) }), 3);
        for (share, expected) in shares(&masked, sampling(1.0)).iter().zip([0.125, 0.25, 0.0, 0.625, 0.0]) {
            assert!((share - expected).abs() < 0.01, "{share} for {expected}");
        }
        assert_eq!(shares(&masked, SamplingInputs { top_p: 0.8, ..sampling(1.0) })[0], 0.0, "of what the mask leaves");
    }

    #[test]
    fn filters_cut_where_they_say() {
        let logits = [1.0f64.ln(), 2.0f64.ln(), 5.0f64.ln(), 2.0f64.ln()];
        let support = |s: SamplingInputs| -> Vec<usize> {
            shares(&logits, s).iter().enumerate().filter(|(_, share)| **share > 0.0).map(|(id, _)| id).collect()
        };
        let s = sampling(1.0);
        assert_eq!(support(SamplingInputs { top_k: 2, ..s }), [1, 2], "equal logits go by id");
        assert_eq!(support(SamplingInputs { top_p: 0.49, ..s }), [2], "the first holds half");
        assert_eq!(support(SamplingInputs { top_p: 0.6, ..s }), [1, 2]);
        assert_eq!(support(SamplingInputs { top_k: 2, top_p: 0.71, ..s }), [2], "of what top-k kept: 5 of 7");
        assert_eq!(support(SamplingInputs { min_p: 0.3, ..s }), [1, 2, 3]);
        assert_eq!(support(SamplingInputs { min_p: 1.0, ..s }), [2]);
    }
}
