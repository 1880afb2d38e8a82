//! Reference of `attention_merge`: the sum of the parts in private memory, then the gate.

use super::AttentionMerge;
use crate::inputs::StepInputs;
use crate::ops::sigmoid_gate;
use crate::reference::Memory;

/// Head by head.
pub fn run(op: &AttentionMerge, mem: &mut Memory, inputs: &StepInputs) {
    let dim = op.of.attention.layer.head_dim;
    for s in &inputs.sequences {
        let spans = op.of.cut.spans(s.start + 1);
        for head in 0..op.gate.heads {
            let part = |i: usize| {
                let first = (head * op.of.cut.capacity() + i) * op.of.part_len();
                first..first + op.of.part_len()
            };
            let parts: Vec<Vec<f64>> = (0..spans).map(|i| mem.floats(&op.of.parts, s.first_row, part(i))).collect();
            mem.set_floats(&op.gate.x, s.first_row, head * dim, &merged(&parts, dim));
        }
    }
    sigmoid_gate::reference::run(&op.gate, mem, inputs);
}

fn merged(parts: &[Vec<f64>], dim: usize) -> Vec<f64> {
    let largest = parts.iter().map(|part| part[dim]).fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = parts.iter().map(|part| (part[dim] - largest).exp()).collect();
    let total: f64 = parts.iter().zip(&weights).map(|(part, weight)| part[dim + 1] * weight).sum();
    let element = |i: usize| parts.iter().zip(&weights).map(|(part, weight)| part[i] * weight).sum::<f64>() / total;
    (0..dim).map(element).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_weigh_as_their_largest_scores_say() {
        // Two parts whose weights are e and 1, each of one position.
        let out = merged(&[vec![1.0, 5.0, 1.0], vec![3.0, 4.0, 1.0]], 1);
        let e = std::f64::consts::E;
        assert!((out[0] - (e + 3.0) / (e + 1.0)).abs() < 1e-12);
    }
}
