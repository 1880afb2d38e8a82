//! Reference of `conv1d_silu`.

use super::Conv1dSilu;
use crate::inputs::StepInputs;
use crate::reference::Memory;
use crate::reference::math::silu;

/// The state's rows followed by the step's; each output row looks back over `taps` of them.
pub fn run(op: &Conv1dSilu, mem: &mut Memory, inputs: &StepInputs) {
    let taps = op.weight.rows;
    let weight: Vec<Vec<f64>> = (0..taps).map(|j| mem.row(&op.weight, j)).collect();
    for sequence in &inputs.sequences {
        let mut rows: Vec<Vec<f64>> = (0..taps - 1).map(|i| mem.state_row(sequence, &op.state_in, i)).collect();
        rows.extend((0..sequence.num_rows).map(|i| mem.row(&op.x, sequence.first_row + i)));
        for i in 0..sequence.num_rows {
            let tap = |c: usize| (0..taps).map(|j| weight[j][c] * rows[i + j][c]).sum::<f64>();
            let out: Vec<f64> = (0..op.x.cols).map(|c| silu(tap(c))).collect();
            mem.set_row(&op.out, sequence.first_row + i, &out);
        }
        for (i, row) in rows[sequence.num_rows..].iter().enumerate() {
            mem.set_state_row(sequence, &op.state_out, i, row);
        }
    }
}
