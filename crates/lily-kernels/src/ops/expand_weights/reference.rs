//! Reference of `expand_weights`.

use super::ExpandWeights;
use crate::reference::Memory;
use crate::reference::weights::matrix_row;

/// Row by row.
pub fn run(op: &ExpandWeights, mem: &mut Memory) {
    for row in 0..op.out.rows {
        let values = matrix_row(mem, &op.weight, row / op.weight.rows, row % op.weight.rows);
        mem.set_row(&op.out, row, &values);
    }
}
