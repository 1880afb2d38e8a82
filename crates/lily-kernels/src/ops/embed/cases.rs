//! Cases of `embed`.

use super::Embed;
use crate::check::{Case, CaseBuilder, STEPS, Step};
use crate::ops::linear::cases::FORMATS;
use crate::tensor::{DType, Format};

const VOCAB: usize = 37;

/// Every weight format; ids that repeat; ids with the inputs and in a token slot.
pub fn cases() -> Vec<Case> {
    let of_step = |step: &Step| {
        let step = *step;
        FORMATS.iter().enumerate().map(move |(i, format)| case(step, *format, i % 2 == 0))
    };
    STEPS.iter().flat_map(of_step).collect()
}

fn case(step: Step, format: Format, on_device: bool) -> Case {
    let mut b = CaseBuilder::new(step);
    b.inputs.token_slot = b.bucket() % 2;
    let ids: Vec<u32> = (0..b.rows()).map(|_| b.random.below(VOCAB) as u32).collect();
    let tokens = b.tokens(&ids, on_device);
    let table = b.matrix(1, VOCAB, 128, format);
    let out = b.output(b.bucket(), table.cols, DType::F32);
    let from = if on_device { "ids in the slot" } else { "ids in the inputs" };
    b.finish(&format!("{format:?}, {from}"), Embed { tokens, table, out }, 1e-6)
}
