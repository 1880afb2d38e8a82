//! Cases of `embed`.

use super::Embed;
use crate::check::{Case, CaseBuilder, LazyCase, STEPS, Step, TRUE_ROWS, at_shapes};
use crate::ops::linear::cases::FORMATS;
use crate::tensor::{DType, Format};

/// Every weight format; ids that repeat; ids with the inputs and in a token slot.
pub fn cases() -> Vec<Case> {
    let of_step = |step: &Step| {
        let step = *step;
        FORMATS.iter().enumerate().map(move |(i, format)| case(step, (37, 128), *format, i % 2 == 0))
    };
    STEPS.iter().flat_map(of_step).collect()
}

/// The model's shapes.
pub fn true_shapes() -> Vec<LazyCase> {
    at_shapes(&[TRUE_ROWS[1], TRUE_ROWS[3]], &[(248_320, 2048)], |step, shape| case(step, shape, FORMATS[0], true))
}

/// The shape is vocabulary and columns.
fn case(step: Step, shape: (usize, usize), format: Format, on_device: bool) -> Case {
    let (vocab, cols) = shape;
    let mut b = CaseBuilder::new(step);
    b.inputs.token_slot = b.bucket() % 2;
    let ids: Vec<u32> = (0..b.rows()).map(|_| b.random.below(vocab) as u32).collect();
    let tokens = b.tokens(&ids, on_device);
    let table = b.matrix(1, vocab, cols, format);
    let out = b.output(b.bucket(), table.cols, DType::F32);
    let from = if on_device { "ids in the slot" } else { "ids in the inputs" };
    b.finish(&format!("{vocab} of {cols}, {format:?}, {from}"), Embed { tokens, table, out }, 1e-6)
}
