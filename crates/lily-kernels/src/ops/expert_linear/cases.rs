//! Cases of `expert_linear`, and the routings that `expert_gate_up` shares.

use super::ExpertLinear;
use crate::check::{Case, CaseBuilder, LazyCase, STEPS, Step, TRUE_ROWS, at_shapes};
use crate::ops::group_rows::Groups;
use crate::ops::linear::cases::{FORMATS, LONG, activations, formats, whole_groups};
use crate::tensor::{DType, Format, Tensor};

/// Who chooses whom.
#[derive(Debug, Clone, Copy)]
pub enum Routing {
    /// Distinct experts of each token, at random; some get no row.
    Random {
        /// Experts in the layer.
        experts: usize,
        /// Experts per token.
        top_k: usize,
    },
    /// Every token chooses the last expert but one.
    AllToOne {
        /// Experts in the layer.
        experts: usize,
    },
}

/// The model's.
pub const TRUE_ROUTING: Routing = Routing::Random { experts: 256, top_k: 8 };

/// Each token's experts, and how many there are in the layer.
fn draw(b: &mut CaseBuilder, routing: Routing) -> (Vec<Vec<u32>>, usize) {
    match routing {
        Routing::Random { experts, top_k } => {
            ((0..b.rows()).map(|_| b.random.distinct(top_k, experts)).collect(), experts)
        }
        Routing::AllToOne { experts } => (vec![vec![experts as u32 - 2]; b.rows()], experts),
    }
}

/// Adds a routing's groups to a case.
pub fn route(b: &mut CaseBuilder, routing: Routing) -> Groups {
    let (chosen, experts) = draw(b, routing);
    b.groups(&chosen, experts)
}

/// Adds a routing as the router leaves it, and tells how many experts there are.
pub fn choose(b: &mut CaseBuilder, routing: Routing) -> (Tensor, usize) {
    let (chosen, experts) = draw(b, routing);
    (b.input_ids(b.bucket(), chosen[0].len(), &chosen.concat()), experts)
}

/// Formats and activations as in `linear`, token rows and pair rows, every routing.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for step in STEPS {
        for (i, (format, quantized)) in formats().into_iter().enumerate() {
            let shape = [(5, 64), (8, 128), (19, 320)][i % 3];
            cases.push(case(*step, (format, quantized), shape, (Routing::Random { experts: 8, top_k: 2 }, i % 2 == 0)));
        }
        let format = formats()[0].0;
        cases.push(case(*step, (format, true), (33, 64), (Routing::AllToOne { experts: 3 }, false)));
        cases.push(case(*step, (format, false), (33, 64), (Routing::Random { experts: 20, top_k: 8 }, true)));
        cases.push(case(*step, (format, true), (16, 128), (Routing::Random { experts: 20, top_k: 8 }, false)));
    }
    for (experts, by_pair) in [(3, false), (40, true)] {
        cases.push(case(LONG, (formats()[0].0, false), (70, 64), (Routing::Random { experts, top_k: 2 }, by_pair)));
    }
    cases
}

/// The model's shapes.
pub fn true_shapes() -> Vec<LazyCase> {
    let shapes = [((512, 2048), false), ((2048, 512), true)];
    at_shapes(TRUE_ROWS, &shapes, |step, (shape, by_pair)| {
        case(step, (FORMATS[0], false), shape, (TRUE_ROUTING, by_pair))
    })
}

/// `form` is the format and whether activations are int8, `rows` the routing and whether they are pairs.
fn case(step: Step, form: (Format, bool), shape: (usize, usize), rows: (Routing, bool)) -> Case {
    let ((format, quantized), (n, k), (routing, by_pair)) = (form, shape, rows);
    let k = whole_groups(format, k);
    let mut b = CaseBuilder::new(step);
    if b.bucket() == LONG.bucket() {
        b.align_weights();
    }
    let groups = route(&mut b, routing);
    let x = activations(&mut b, if by_pair { groups.top_k() } else { 1 }, k, quantized);
    let weight = b.matrix(groups.experts(), n, k, format);
    let out = b.output(b.bucket() * groups.top_k(), n, DType::F32);
    let name = format!(
        "{k}→{n}, {format:?} × {}, {routing:?} by {}",
        if quantized { "int8" } else { "f32" },
        if by_pair { "pair" } else { "token" }
    );
    b.finish(&name, ExpertLinear { x, by_pair, weight, groups, out }, 1e-5)
}
