//! Reference of `embed`.

use super::Embed;
use crate::inputs::StepInputs;
use crate::reference::Memory;
use crate::reference::weights::matrix_row;

/// `out[t] = table[tokens[t]]`.
pub fn run(op: &Embed, mem: &mut Memory, inputs: &StepInputs) {
    for t in 0..inputs.num_tokens() {
        let id = mem.ids(&op.tokens, t)[0] as usize;
        let row = matrix_row(mem, &op.table, 0, id);
        mem.set_row(&op.out, t, &row);
    }
}
