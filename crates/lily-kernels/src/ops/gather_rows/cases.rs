//! Cases of `gather_rows`.

use super::GatherRows;
use crate::check::{Case, CaseBuilder, LazyCase, STEPS, Step, TRUE_ROWS, at_shapes};
use crate::tensor::DType;

/// The last row, every row, every second row.
pub fn cases() -> Vec<Case> {
    let of_step = |step: &Step| {
        let (step, rows) = (*step, step.rows() as u32);
        let mut picks = vec![vec![rows - 1], (0..rows).step_by(2).collect(), (0..rows).collect()];
        picks.dedup();
        picks.into_iter().map(move |pick| case(step, &pick, 67))
    };
    STEPS.iter().flat_map(of_step).collect()
}

/// The model's shapes.
pub fn true_shapes() -> Vec<LazyCase> {
    at_shapes(TRUE_ROWS, &[2048], |step, cols| case(step, &[step.rows() as u32 - 1], cols))
}

fn case(step: Step, pick: &[u32], cols: usize) -> Case {
    let mut b = CaseBuilder::new(step);
    b.outputs(pick);
    let x = b.normal(1, cols);
    let out = b.output(b.bucket(), cols, DType::F32);
    b.finish(&format!("rows {pick:?}"), GatherRows { x, out }, 0.0)
}
