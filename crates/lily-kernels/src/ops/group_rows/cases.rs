//! Cases of `group_rows`.

use super::{GroupRows, Groups};
use crate::check::{Case, CaseBuilder, LazyCase, STEPS, Step, TRUE_ROWS, at_shapes};
use crate::tensor::DType;

/// Experts without rows, one expert with all rows, as many experts per token as there are.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for step in STEPS {
        cases.extend([(8, 2), (256, 8), (3, 3), (64, 1), (600, 10)].map(|shape| random(*step, shape)));
        let b = CaseBuilder::new(*step);
        let chosen = vec![3; b.rows()];
        cases.push(case(b, "all to one of 5", (5, 1), &chosen));
    }
    cases
}

/// The model's shapes.
pub fn true_shapes() -> Vec<LazyCase> {
    at_shapes(TRUE_ROWS, &[(256, 8)], random)
}

/// Distinct experts of each token, at random.
fn random(step: Step, shape: (usize, usize)) -> Case {
    let (experts, top_k) = shape;
    let mut b = CaseBuilder::new(step);
    let chosen: Vec<u32> = (0..b.rows()).flat_map(|_| b.random.distinct(top_k, experts)).collect();
    case(b, &format!("{top_k} of {experts}"), shape, &chosen)
}

fn case(mut b: CaseBuilder, name: &str, shape: (usize, usize), chosen: &[u32]) -> Case {
    let (num_experts, top_k) = shape;
    let experts = b.input_ids(b.bucket(), top_k, chosen);
    let offsets = b.output(1, num_experts + 1, DType::U32);
    let order = b.output(b.bucket(), top_k, DType::U32);
    b.finish(name, GroupRows { experts, groups: Groups { offsets, order } }, 0.0)
}
