//! Cases of `moe_down`.

use super::MoeDown;
use crate::check::{Case, CaseBuilder, DECODE_STEPS, LazyCase, Step, TRUE_DECODES, at_shapes};
use crate::op::Rows;
use crate::ops::add::Add;
use crate::ops::combine_experts::CombineExperts;
use crate::ops::expert_linear::ExpertLinear;
use crate::ops::expert_linear::cases::{Routing, TRUE_ROUTING, choose};
use crate::ops::linear::cases::FORMATS;
use crate::ops::linear::{Activations, Linear};
use crate::ops::moe_gate_up::cases::{ROUTINGS, no_groups};
use crate::ops::moe_output::MoeOutput;
use crate::ops::shared_expert_add::SharedExpertAdd;
use crate::tensor::{DType, Format};

/// Every routing; both matrices in formats of their own; experts wider and narrower than the shared one.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, step) in DECODE_STEPS.iter().enumerate() {
        for (j, routing) in ROUTINGS.into_iter().enumerate() {
            let formats = [0, 1].map(|k| FORMATS[(2 * (3 * i + j) + k) % FORMATS.len()]);
            cases.push(case(*step, formats, routing, ([(128, 256), (384, 128)][(i + j) % 2], 37)));
        }
    }
    cases
}

/// The model's shapes.
pub fn true_shapes() -> Vec<LazyCase> {
    let steps = [TRUE_DECODES[0], TRUE_DECODES[3]];
    at_shapes(&steps, &[((512, 512), 2048)], |step, shape| case(step, [FORMATS[0]; 2], TRUE_ROUTING, shape))
}

/// `shape`: inputs from the chosen experts and from the shared one, and outputs.
fn case(step: Step, formats: [Format; 2], routing: Routing, shape: ((usize, usize), usize)) -> Case {
    let (inner, cols) = shape;
    let mut b = CaseBuilder::new(step);
    let (experts, num_experts) = choose(&mut b, routing);
    let groups = no_groups(&mut b, &experts, num_experts);
    let pairs = b.bucket() * experts.cols;
    let routed = ExpertLinear {
        x: Activations::Full(b.normal(experts.cols, inner.0)),
        by_pair: experts.cols > 1,
        weight: b.matrix(num_experts, cols, inner.0, formats[0]),
        groups,
        out: b.temp(pairs, cols),
    };
    let shared = Linear {
        may_round: false,
        rows: Rows::Tokens,
        x: Activations::Full(b.normal(1, inner.1)),
        weight: b.matrix(1, cols, inner.1, formats[1]),
        out: b.temp(b.bucket(), cols),
    };
    let weights = b.normal(1, experts.cols);
    let combine = CombineExperts { x: routed.out, weights, out: b.temp(b.bucket(), cols) };
    let gate = b.normal(1, 1);
    let add_shared = SharedExpertAdd { x: combine.out, shared: shared.out, gate, out: b.temp(b.bucket(), cols) };
    let residual = b.normal(1, cols);
    let add = Add { a: residual, b: add_shared.out, out: b.output(b.bucket(), cols, DType::F32) };
    let output = MoeOutput { combine, shared: add_shared, add };
    b.finish(&format!("{formats:?}, {routing:?}, {inner:?}→{cols}"), MoeDown { experts, routed, shared, output }, 1e-5)
}
