//! Reference of `expert_linear`.

use super::ExpertLinear;
use crate::inputs::StepInputs;
use crate::ops::linear::reference::multiply;
use crate::reference::Memory;

/// Expert by expert, the pairs that chose it.
pub fn run(op: &ExpertLinear, mem: &mut Memory, inputs: &StepInputs) {
    let tokens = 0..inputs.num_tokens();
    let offsets = mem.ids(&op.groups.offsets, 0);
    let order: Vec<u32> = tokens.flat_map(|t| mem.ids(&op.groups.order, t)).collect();
    for (expert, ends) in offsets.windows(2).enumerate() {
        let pairs = &order[ends[0] as usize..ends[1] as usize];
        if !pairs.is_empty() {
            let rows: Vec<(usize, usize)> =
                pairs.iter().map(|&p| (p as usize / op.pairs_per_row(), p as usize)).collect();
            multiply(mem, &op.x, (&op.weight, expert), &op.out, &rows);
        }
    }
}
