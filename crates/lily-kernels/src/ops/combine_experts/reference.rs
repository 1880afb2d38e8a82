//! Reference of `combine_experts`.

use super::CombineExperts;
use crate::inputs::StepInputs;
use crate::reference::Memory;

/// `out[t] = Σ_r weights[t, r] · x[t·K + r]`.
pub fn run(op: &CombineExperts, mem: &mut Memory, inputs: &StepInputs) {
    let top_k = op.weights.cols;
    for t in 0..inputs.num_tokens() {
        let mut sum = vec![0.0; op.out.cols];
        for (rank, weight) in mem.row(&op.weights, t).into_iter().enumerate() {
            for (s, x) in sum.iter_mut().zip(mem.row(&op.x, t * top_k + rank)) {
                *s += weight * x;
            }
        }
        mem.set_row(&op.out, t, &sum);
    }
}
