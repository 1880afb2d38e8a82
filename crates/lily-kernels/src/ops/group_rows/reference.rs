//! Reference of `group_rows`.

use super::GroupRows;
use crate::inputs::StepInputs;
use crate::reference::Memory;

/// A stable sort of the pairs by expert.
pub fn run(op: &GroupRows, mem: &mut Memory, inputs: &StepInputs) {
    let tokens = inputs.num_tokens();
    let expert: Vec<u32> = (0..tokens).flat_map(|t| mem.ids(&op.experts, t)).collect();
    let mut order: Vec<u32> = (0..expert.len() as u32).collect();
    order.sort_by_key(|&pair| expert[pair as usize]);
    let below = |e: usize| expert.iter().filter(|&&x| (x as usize) < e).count() as u32;
    let offsets: Vec<u32> = (0..=op.groups.experts()).map(below).collect();
    mem.set_ids(&op.groups.offsets, 0, &offsets);
    for (t, pairs) in order.chunks(op.groups.top_k()).enumerate() {
        mem.set_ids(&op.groups.order, t, pairs);
    }
}
