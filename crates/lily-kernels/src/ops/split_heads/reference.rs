//! Reference of `split_heads`.

use super::SplitHeads;
use crate::inputs::StepInputs;
use crate::reference::Memory;

/// Element (head, part, i) of x to element (part, head, i) of out.
pub fn run(op: &SplitHeads, mem: &mut Memory, inputs: &StepInputs) {
    for t in 0..inputs.num_tokens() {
        let mut to = 0;
        let mut first = op.parts.start;
        for width in op.parts.widths {
            for head in 0..op.heads {
                let from = head * op.stride() + first;
                let piece = mem.floats(&op.x, t, from..from + width);
                mem.set_floats(&op.out, t, to, &piece);
                to += width;
            }
            first += width;
        }
    }
}
