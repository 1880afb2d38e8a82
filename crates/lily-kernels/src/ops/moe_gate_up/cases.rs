//! Cases of `moe_gate_up`.

use super::MoeGateUp;
use crate::check::{Case, CaseBuilder, DECODE_STEPS, LazyCase, Step, TRUE_DECODES, at_shapes};
use crate::op::Rows;
use crate::ops::expert_gate_up::ExpertGateUp;
use crate::ops::expert_linear::ExpertLinear;
use crate::ops::expert_linear::cases::{Routing, TRUE_ROUTING, choose};
use crate::ops::group_rows::Groups;
use crate::ops::linear::cases::FORMATS;
use crate::ops::linear::{Activations, Linear};
use crate::ops::swiglu::SwiGlu;
use crate::tensor::{DType, Format, Tensor};

/// Few experts and many, and all tokens with one.
pub const ROUTINGS: [Routing; 3] = [
    Routing::Random { experts: 8, top_k: 2 },
    Routing::Random { experts: 20, top_k: 8 },
    Routing::AllToOne { experts: 5 },
];

/// Every routing; the four matrices in formats of their own; the shared expert wider than a chosen one, or narrower.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, step) in DECODE_STEPS.iter().enumerate() {
        for (j, routing) in ROUTINGS.into_iter().enumerate() {
            let formats = [0, 1, 2, 3].map(|k| FORMATS[(4 * (3 * i + j) + k) % FORMATS.len()]);
            cases.push(case(*step, formats, routing, (128, [(19, 8), (8, 33)][(i + j) % 2])));
        }
    }
    cases
}

/// The model's shapes.
pub fn true_shapes() -> Vec<LazyCase> {
    let steps = [TRUE_DECODES[0], TRUE_DECODES[3]];
    at_shapes(&steps, &[(2048, (512, 512))], |step, shape| case(step, [FORMATS[0]; 4], TRUE_ROUTING, shape))
}

/// Groups that nobody reads.
pub fn no_groups(b: &mut CaseBuilder, experts: &Tensor, num_experts: usize) -> Groups {
    let u32s = |t: Tensor| Tensor { dtype: DType::U32, ..t };
    Groups { offsets: u32s(b.temp(1, num_experts + 1)), order: u32s(b.temp(experts.rows, experts.cols)) }
}

/// `shape`: inputs, and outputs of the chosen experts and of the shared one.
fn case(step: Step, formats: [Format; 4], routing: Routing, shape: (usize, (usize, usize))) -> Case {
    let (cols, widths) = shape;
    let mut b = CaseBuilder::new(step);
    let (experts, num_experts) = choose(&mut b, routing);
    let groups = no_groups(&mut b, &experts, num_experts);
    let x = Activations::Full(b.normal(1, cols));
    let pairs = b.bucket() * experts.cols;
    let mut project = |format| ExpertLinear {
        x,
        by_pair: false,
        weight: b.matrix(num_experts, widths.0, cols, format),
        groups,
        out: b.temp(pairs, widths.0),
    };
    let (gate, up) = (project(formats[0]), project(formats[1]));
    let out = b.output(pairs, widths.0, DType::F32);
    let act = SwiGlu { gate: gate.out, up: up.out, out, per_token: experts.cols };
    let routed = ExpertGateUp { gate, up, act };
    let mut project = |format| Linear {
        may_round: false,
        rows: Rows::Tokens,
        x,
        weight: b.matrix(1, widths.1, cols, format),
        out: b.temp(b.bucket(), widths.1),
    };
    let (gate, up) = (project(formats[2]), project(formats[3]));
    let out = b.output(b.bucket(), widths.1, DType::F32);
    let act = SwiGlu { gate: gate.out, up: up.out, out, per_token: 1 };
    b.finish(
        &format!("{formats:?}, {routing:?}, {cols}→{widths:?}"),
        MoeGateUp { experts, routed, gate, up, act },
        1e-5,
    )
}
