//! Reference of `qk_norm_rope_write`: the five ops it stands for, their results between in private memory.

use super::QkNormRopeWrite;
use crate::inputs::StepInputs;
use crate::ops::{kv_write, rms_norm, rope};
use crate::reference::Memory;

/// Norms, rotations, cache write.
pub fn run(op: &QkNormRopeWrite, mem: &mut Memory, inputs: &StepInputs) {
    rms_norm::reference::run(&op.q_norm, mem, inputs);
    rms_norm::reference::run(&op.k_norm, mem, inputs);
    rope::reference::run(&op.q_rope, mem, inputs);
    rope::reference::run(&op.k_rope, mem, inputs);
    kv_write::reference::run(&op.write, mem, inputs);
}
