//! Reference of `router_top_k`.

use std::cmp::Ordering;

use super::RouterTopK;
use crate::inputs::StepInputs;
use crate::reference::Memory;

/// Row by row.
pub fn run(op: &RouterTopK, mem: &mut Memory, inputs: &StepInputs) {
    for t in 0..inputs.num_tokens() {
        let (experts, weights) = choose(&mem.row(&op.logits, t), op.experts.cols);
        mem.set_ids(&op.experts, t, &experts);
        mem.set_row(&op.weights, t, &weights);
    }
}

/// The k largest, ties to the lower id, and their softmax.
fn choose(logits: &[f64], k: usize) -> (Vec<u32>, Vec<f64>) {
    if logits.iter().any(|logit| logit.is_nan()) {
        let least: Vec<f64> = logits.iter().map(|l| if l.is_nan() { f64::NEG_INFINITY } else { *l }).collect();
        return (choose(&least, k).0, vec![f64::NAN; k]);
    }
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    // The sort is stable, so equal logits stay in the order of their ids.
    ids.sort_by(|&a, &b| logits[b as usize].partial_cmp(&logits[a as usize]).unwrap_or(Ordering::Equal));
    ids.truncate(k);
    let exps: Vec<f64> = ids.iter().map(|&e| (logits[e as usize] - logits[ids[0] as usize]).exp()).collect();
    let total: f64 = exps.iter().sum();
    (ids, exps.into_iter().map(|e| e / total).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_go_to_the_lower_expert_and_weights_are_the_softmax_renormalised() {
        let logits = [0.0, 2.0, -1.0, 2.0, 0.0, 1.0];
        let (experts, weights) = choose(&logits, 4);
        assert_eq!(experts, [1, 3, 5, 0]);
        let all: f64 = logits.iter().map(|l| l.exp()).sum();
        let chosen: f64 = experts.iter().map(|&e| logits[e as usize].exp() / all).sum();
        for (e, w) in experts.iter().zip(&weights) {
            assert!((w - logits[*e as usize].exp() / all / chosen).abs() < 1e-15);
        }
    }

    #[test]
    fn a_nan_is_the_least_and_no_weight_is_a_number() {
        let (experts, weights) = choose(&[f64::NAN, 1.0, 3.0], 2);
        assert_eq!(experts, [2, 1]);
        assert!(weights.iter().all(|weight| weight.is_nan()));
    }

    #[test]
    fn zeros_of_either_sign_tie() {
        assert_eq!(choose(&[-0.0, 0.0, -0.0], 2).0, [0, 1]);
    }
}
