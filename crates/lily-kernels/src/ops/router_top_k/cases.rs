//! Cases of `router_top_k`.

use super::RouterTopK;
use crate::check::{Case, CaseBuilder, LazyCase, STEPS, Step, TRUE_ROWS, at_shapes};
use crate::tensor::DType;

/// Few and many experts; logits that tie, zeros of both signs among them.
pub fn cases() -> Vec<Case> {
    let shapes = [(8, 1, false), (64, 8, false), (256, 8, false), (5, 5, false), (256, 8, true), (13, 4, true)];
    STEPS.iter().flat_map(|step| shapes.map(|shape| case(*step, shape))).collect()
}

/// The model's shapes.
pub fn true_shapes() -> Vec<LazyCase> {
    at_shapes(TRUE_ROWS, &[(256, 8, false), (256, 8, true)], case)
}

fn case(step: Step, shape: (usize, usize, bool)) -> Case {
    let (num_experts, top_k, ties) = shape;
    let mut b = CaseBuilder::new(step);
    let mut values = b.random.normals(b.rows() * num_experts, 2.0);
    if ties {
        // Multiples of 2, so that few values share many experts; half of the zeros are negative.
        values.iter_mut().for_each(|v| *v = (*v / 2.0).round_ties_even() * 2.0);
    }
    let logits = b.input(b.bucket(), num_experts, &values);
    let experts = b.output(b.bucket(), top_k, DType::U32);
    let weights = b.output(b.bucket(), top_k, DType::F32);
    let name = format!("{top_k} of {num_experts}{}", if ties { " with ties" } else { "" });
    b.finish(&name, RouterTopK { logits, experts, weights }, 2e-6)
}
