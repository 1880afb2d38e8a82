//! Reference of `attention`: one softmax over all positions, no blocks.

use super::Attention;
use crate::inputs::{SequenceInputs, StepInputs};
use crate::reference::math::dot;
use crate::reference::{KvRow, Memory};

/// Every row over every earlier position and itself.
pub fn run(op: &Attention, mem: &mut Memory, inputs: &StepInputs) {
    for sequence in &inputs.sequences {
        for head in 0..op.layer.heads {
            let keys = cached(op, mem, sequence, 0, head);
            let values = cached(op, mem, sequence, 1, head);
            run_head(op, mem, sequence, head, &keys, &values);
        }
    }
}

/// A head's keys (0) or values (1) at all positions of the cache.
fn cached(op: &Attention, mem: &mut Memory, s: &SequenceInputs, which: usize, head: usize) -> Vec<Vec<f64>> {
    let row = |position| mem.kv_row(s, &op.layer, KvRow { which, head, position });
    (0..s.start + s.num_rows).map(row).collect()
}

/// The query heads that read one key/value head.
fn run_head(op: &Attention, mem: &mut Memory, s: &SequenceInputs, head: usize, keys: &[Vec<f64>], values: &[Vec<f64>]) {
    let dim = op.layer.head_dim;
    let shared_by = op.q_heads() / op.layer.heads;
    for i in 0..s.num_rows {
        let (row, position) = (s.first_row + i, s.start + i);
        for q_head in head * shared_by..(head + 1) * shared_by {
            let q = mem.floats(&op.q, row, q_head * dim..(q_head + 1) * dim);
            let out = attend(&q, &keys[..=position], &values[..=position]);
            mem.set_floats(&op.out, row, q_head * dim, &out);
        }
    }
}

/// `softmax(q·K / √dim) · V`.
fn attend(q: &[f64], keys: &[Vec<f64>], values: &[Vec<f64>]) -> Vec<f64> {
    let scale = 1.0 / (q.len() as f64).sqrt();
    let scores: Vec<f64> = keys.iter().map(|k| dot(q, k) * scale).collect();
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut out = vec![0.0; q.len()];
    for (weight, value) in weights.iter().zip(values) {
        for (o, v) in out.iter_mut().zip(value) {
            *o += weight / total * v;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_position_returns_its_value_and_equal_keys_the_mean() {
        let q = [0.3, -1.0];
        assert_eq!(attend(&q, &[vec![5.0, 2.0]], &[vec![1.5, -7.0]]), [1.5, -7.0]);
        let out = attend(&q, &[vec![5.0, 2.0], vec![5.0, 2.0]], &[vec![1.0, 0.0], vec![3.0, 8.0]]);
        assert_eq!(out, [2.0, 4.0]);
    }

    #[test]
    fn a_dominant_key_takes_all_and_large_scores_do_not_overflow() {
        let out = attend(&[1e4, 0.0], &[vec![1e4, 0.0], vec![-1e4, 0.0]], &[vec![1.0, 2.0], vec![3.0, 4.0]]);
        assert_eq!(out, [1.0, 2.0]);
    }
}
