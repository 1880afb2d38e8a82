//! Cases of `expert_gate_up`.

use super::ExpertGateUp;
use crate::check::{Case, CaseBuilder, STEPS, Step};
use crate::ops::expert_linear::ExpertLinear;
use crate::ops::expert_linear::cases::{Routing, route};
use crate::ops::linear::cases::{activations, formats};
use crate::ops::swiglu::SwiGlu;
use crate::tensor::{DType, Format};

/// Formats and activations as in `linear`; every routing.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for step in STEPS {
        for (format, quantized) in formats() {
            cases.push(case(*step, format, quantized, Routing::Random { experts: 8, top_k: 2 }));
        }
        cases.push(case(*step, formats()[0].0, true, Routing::AllToOne { experts: 5 }));
        cases.push(case(*step, formats()[0].0, false, Routing::Random { experts: 20, top_k: 8 }));
    }
    cases
}

fn case(step: Step, format: Format, quantized: bool, routing: Routing) -> Case {
    let (rows, cols) = (19, 128);
    let mut b = CaseBuilder::new(step);
    let groups = route(&mut b, routing);
    let x = activations(&mut b, 1, cols, quantized);
    let pairs = b.bucket() * groups.top_k();
    let mut project = || ExpertLinear {
        x,
        by_pair: false,
        weight: b.matrix(groups.experts(), rows, cols, format),
        groups,
        out: b.temp(pairs, rows),
    };
    let (gate, up) = (project(), project());
    let out = b.output(pairs, rows, DType::F32);
    let act = SwiGlu { gate: gate.out, up: up.out, out, per_token: groups.top_k() };
    let form = if quantized { "int8" } else { "f32" };
    b.finish(&format!("{format:?} × {form}, {routing:?}"), ExpertGateUp { gate, up, act }, 1e-5)
}
