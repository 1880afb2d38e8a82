//! Reference of `attention_parts`: each span by itself.

use super::AttentionParts;
use crate::inputs::StepInputs;
use crate::reference::math::dot;
use crate::reference::{KvRow, Memory};

/// Every span of every head of every sequence.
pub fn run(op: &AttentionParts, mem: &mut Memory, inputs: &StepInputs) {
    let o = &op.attention;
    let (dim, heads) = (o.layer.head_dim, o.q_heads());
    let shared_by = heads / o.layer.heads;
    for s in &inputs.sequences {
        assert_eq!(s.num_rows, 1, "one token of each sequence");
        let length = s.start + 1;
        let span = op.cut.span(length);
        for head in 0..o.layer.heads {
            let mut cached = |which| -> Vec<Vec<f64>> {
                (0..length).map(|position| mem.kv_row(s, &o.layer, KvRow { which, head, position })).collect()
            };
            let (keys, values) = (cached(0), cached(1));
            for q_head in head * shared_by..(head + 1) * shared_by {
                let q = mem.floats(&o.q, s.first_row, q_head * dim..(q_head + 1) * dim);
                for (i, (keys, values)) in keys.chunks(span).zip(values.chunks(span)).enumerate() {
                    let part = part(&q, keys, values);
                    mem.set_floats(&op.parts, s.first_row, (q_head * op.cut.capacity() + i) * op.part_len(), &part);
                }
            }
        }
    }
}

/// Weighted values, the largest score, the sum of weights.
fn part(q: &[f64], keys: &[Vec<f64>], values: &[Vec<f64>]) -> Vec<f64> {
    let scale = 1.0 / (q.len() as f64).sqrt();
    let scores: Vec<f64> = keys.iter().map(|k| dot(q, k) * scale).collect();
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut part = vec![0.0; q.len() + 2];
    for (score, value) in scores.iter().zip(values) {
        let weight = (score - largest).exp();
        part.iter_mut().zip(value).for_each(|(p, v)| *p += weight * v);
        part[q.len() + 1] += weight;
    }
    part[q.len()] = largest;
    part
}
