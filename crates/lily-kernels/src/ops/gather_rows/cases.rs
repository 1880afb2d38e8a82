//! Cases of `gather_rows`.

use super::GatherRows;
use crate::check::{Case, CaseBuilder, STEPS, Step};
use crate::tensor::DType;

/// The last row, every row, every second row.
pub fn cases() -> Vec<Case> {
    let of_step = |step: &Step| {
        let (step, rows) = (*step, step.rows() as u32);
        let mut picks = vec![vec![rows - 1], (0..rows).step_by(2).collect(), (0..rows).collect()];
        picks.dedup();
        picks.into_iter().map(move |pick| case(step, &pick))
    };
    STEPS.iter().flat_map(of_step).collect()
}

fn case(step: Step, pick: &[u32]) -> Case {
    let cols = 67;
    let mut b = CaseBuilder::new(step);
    b.outputs(pick);
    let x = b.normal(1, cols);
    let out = b.output(b.bucket(), cols, DType::F32);
    b.finish(&format!("rows {pick:?}"), GatherRows { x, out }, 0.0)
}
