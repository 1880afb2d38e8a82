//! Reference of `gdn_gates`.

use super::GdnGates;
use crate::inputs::StepInputs;
use crate::reference::Memory;
use crate::reference::math::{sigmoid, softplus};

/// `beta = σ(b)`, `decay = exp(−exp(A_log) · softplus(a + dt_bias))`.
pub fn run(op: &GdnGates, mem: &mut Memory, inputs: &StepInputs) {
    let (a_log, dt_bias) = (mem.row(&op.a_log, 0), mem.row(&op.dt_bias, 0));
    for t in 0..inputs.num_tokens() {
        let (a, b) = (mem.row(&op.a, t), mem.row(&op.b, t));
        let decay: Vec<f64> = (0..a.len()).map(|h| (-a_log[h].exp() * softplus(a[h] + dt_bias[h])).exp()).collect();
        let beta: Vec<f64> = b.iter().map(|b| sigmoid(*b)).collect();
        mem.set_row(&op.decay, t, &decay);
        mem.set_row(&op.beta, t, &beta);
    }
}
