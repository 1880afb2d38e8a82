//! Reference of `kv_write`.

use super::KvWrite;
use crate::inputs::StepInputs;
use crate::reference::{KvRow, Memory};

/// Each row at its position, head by head.
pub fn run(op: &KvWrite, mem: &mut Memory, inputs: &StepInputs) {
    for t in 0..inputs.num_tokens() {
        let (sequence, position) = inputs.locate(t);
        for (which, x) in [&op.k, &op.v].into_iter().enumerate() {
            let row = mem.row(x, t);
            for (head, values) in row.chunks(op.layer.head_dim).enumerate() {
                mem.set_kv_row(sequence, &op.layer, KvRow { which, head, position }, values);
            }
        }
    }
}
