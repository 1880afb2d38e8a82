//! Reference of `gated_delta`: the recurrence as SPEC §2.5 writes it.

use super::GatedDelta;
use crate::inputs::StepInputs;
use crate::reference::Memory;
use crate::reference::math::dot;

/// Each sequence and value head on its own.
pub fn run(op: &GatedDelta, mem: &mut Memory, inputs: &StepInputs) {
    let (dk, dv) = (op.k_dim(), op.v_dim());
    let values_at = op.v.cols - op.out.cols;
    for sequence in &inputs.sequences {
        for head in 0..op.v_heads() {
            let k_head = head * op.k_heads() / op.v_heads();
            let state_rows = head * dv..(head + 1) * dv;
            let mut state: Vec<Vec<f64>> =
                state_rows.clone().map(|row| mem.state_row(sequence, &op.state_in, row)).collect();
            for t in sequence.first_row..sequence.first_row + sequence.num_rows {
                let q = mem.floats(&op.qk, t, k_head * dk..(k_head + 1) * dk);
                let k_first = (op.k_heads() + k_head) * dk;
                let k = mem.floats(&op.qk, t, k_first..k_first + dk);
                let v = mem.floats(&op.v, t, values_at + head * dv..values_at + (head + 1) * dv);
                let decay = mem.floats(&op.decay, t, head..head + 1)[0];
                let beta = mem.floats(&op.beta, t, head..head + 1)[0];
                let y = update(&mut state, &q, &k, &v, (decay, beta));
                mem.set_floats(&op.out, t, head * dv, &y);
            }
            for (row, values) in state_rows.zip(&state) {
                mem.set_state_row(sequence, &op.state_out, row, values);
            }
        }
    }
}

/// One token: `S ← decay·S; δ = beta·(v − S·k); S ← S + δ·kᵀ; y = S·q`.
fn update(state: &mut [Vec<f64>], q: &[f64], k: &[f64], v: &[f64], gates: (f64, f64)) -> Vec<f64> {
    let (decay, beta) = gates;
    let mut y = Vec::with_capacity(v.len());
    for (row, v) in state.iter_mut().zip(v) {
        row.iter_mut().for_each(|s| *s *= decay);
        let delta = beta * (v - dot(row, k));
        row.iter_mut().zip(k).for_each(|(s, k)| *s += delta * k);
        y.push(dot(row, q));
    }
    y
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_beta_zero_the_state_only_decays() {
        let mut state = vec![vec![2.0, -4.0], vec![1.0, 8.0]];
        let y = update(&mut state, &[1.0, 0.0], &[0.6, 0.8], &[100.0, 100.0], (0.5, 0.0));
        assert_eq!(state, [[1.0, -2.0], [0.5, 4.0]]);
        assert_eq!(y, [1.0, 0.5]);
    }

    #[test]
    fn with_beta_one_and_a_unit_key_the_value_is_stored_under_the_key() {
        let mut state = vec![vec![3.0, 1.0], vec![-5.0, 2.0]];
        let k = [0.6, 0.8];
        let y = update(&mut state, &k, &k, &[7.0, -1.0], (0.9, 1.0));
        assert!((y[0] - 7.0).abs() < 1e-14 && (y[1] + 1.0).abs() < 1e-14, "{y:?}");
        // What lay across the key is kept, decayed.
        let across = [0.8, -0.6];
        assert!((dot(&state[0], &across) - 0.9 * (3.0 * 0.8 - 0.6)).abs() < 1e-14);
    }
}
