//! Cases of `expert_gate_up`.

use super::ExpertGateUp;
use crate::check::{Case, CaseBuilder, STEPS, Step};
use crate::ops::expert_linear::ExpertLinear;
use crate::ops::expert_linear::cases::{Routing, route};
use crate::ops::linear::cases::{FORMATS, LONG, activations, formats};
use crate::ops::swiglu::SwiGlu;
use crate::tensor::{DType, Format};

/// Inputs: whole groups of every format.
const COLS: usize = 128;

/// Formats and activations as in `linear`; gate and up in formats of their own; every routing.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for step in STEPS {
        for (format, quantized) in formats() {
            cases.push(case(*step, [format; 2], quantized, Routing::Random { experts: 8, top_k: 2 }));
        }
        cases.push(case(*step, [formats()[0].0; 2], true, Routing::AllToOne { experts: 5 }));
        cases.push(case(*step, [formats()[0].0; 2], false, Routing::Random { experts: 20, top_k: 8 }));
        for (i, gate) in FORMATS.iter().enumerate() {
            let up = FORMATS[(i + 1) % FORMATS.len()];
            let quantized = i % 2 == 0 && [*gate, up].iter().all(|format| format.takes_int8(COLS));
            cases.push(case(*step, [*gate, up], quantized, Routing::Random { experts: 4, top_k: 2 }));
        }
    }
    for experts in [3, 40] {
        cases.push(case(LONG, [formats()[0].0, formats()[1].0], false, Routing::Random { experts, top_k: 2 }));
    }
    cases
}

fn case(step: Step, formats: [Format; 2], quantized: bool, routing: Routing) -> Case {
    let (rows, cols) = (19, COLS);
    let mut b = CaseBuilder::new(step);
    if b.bucket() == LONG.bucket() {
        b.align_weights();
    }
    let groups = route(&mut b, routing);
    let x = activations(&mut b, 1, cols, quantized);
    let pairs = b.bucket() * groups.top_k();
    let mut project = |format| ExpertLinear {
        x,
        by_pair: false,
        weight: b.matrix(groups.experts(), rows, cols, format),
        groups,
        out: b.temp(pairs, rows),
    };
    let (gate, up) = (project(formats[0]), project(formats[1]));
    let out = b.output(pairs, rows, DType::F32);
    let act = SwiGlu { gate: gate.out, up: up.out, out, per_token: groups.top_k() };
    let form = if quantized { "int8" } else { "f32" };
    b.finish(&format!("{formats:?} × {form}, {routing:?}"), ExpertGateUp { gate, up, act }, 1e-5)
}
