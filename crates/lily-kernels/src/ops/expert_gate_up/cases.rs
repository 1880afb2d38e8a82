//! Cases of `expert_gate_up`.

use super::ExpertGateUp;
use crate::check::{Case, CaseBuilder, LazyCase, STEPS, Step, TRUE_ROWS, at_shapes};
use crate::ops::expert_linear::ExpertLinear;
use crate::ops::expert_linear::cases::{Routing, TRUE_ROUTING, route};
use crate::ops::linear::cases::{FORMATS, LONG, activations, formats};
use crate::ops::swiglu::SwiGlu;
use crate::tensor::{DType, Format};

/// Outputs, and inputs: whole groups of every format.
const SHAPE: (usize, usize) = (19, 128);

/// Formats and activations as in `linear`; gate and up in formats of their own; every routing.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for step in STEPS {
        for (format, quantized) in formats() {
            cases.push(case(*step, SHAPE, ([format; 2], quantized), Routing::Random { experts: 8, top_k: 2 }));
        }
        cases.push(case(*step, SHAPE, ([formats()[0].0; 2], true), Routing::AllToOne { experts: 5 }));
        cases.push(case(*step, SHAPE, ([formats()[0].0; 2], false), Routing::Random { experts: 20, top_k: 8 }));
        for (i, gate) in FORMATS.iter().enumerate() {
            let up = FORMATS[(i + 1) % FORMATS.len()];
            let quantized = i % 2 == 0 && [*gate, up].iter().all(|format| format.takes_int8(SHAPE.1));
            cases.push(case(*step, SHAPE, ([*gate, up], quantized), Routing::Random { experts: 4, top_k: 2 }));
        }
    }
    for experts in [3, 40] {
        let form = ([formats()[0].0, formats()[1].0], false);
        cases.push(case(LONG, SHAPE, form, Routing::Random { experts, top_k: 2 }));
    }
    cases
}

/// The model's shapes.
pub fn true_shapes() -> Vec<LazyCase> {
    // A sum of 2,048 products in f32, eight at a time, and the product of two such: the largest error of millions.
    at_shapes(TRUE_ROWS, &[(512, 2048)], |step, shape| Case {
        tolerance: 3e-5,
        ..case(step, shape, ([FORMATS[0]; 2], false), TRUE_ROUTING)
    })
}

/// `form` is the formats of gate and up, and whether activations are int8.
fn case(step: Step, shape: (usize, usize), form: ([Format; 2], bool), routing: Routing) -> Case {
    let ((rows, cols), (formats, quantized)) = (shape, form);
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
    b.finish(&format!("{cols}→{rows}, {formats:?} × {form}, {routing:?}"), ExpertGateUp { gate, up, act }, 1e-5)
}
