//! Cases of `linear_add`.

use super::{HeadScale, LinearAdd};
use crate::check::{Case, CaseBuilder, LazyCase, STEPS, Step, TRUE_ROWS, at_shapes};
use crate::op::Rows;
use crate::ops::add::Add;
use crate::ops::gated_delta_step::PART;
use crate::ops::linear::cases::FORMATS;
use crate::ops::linear::{Activations, Linear};
use crate::tensor::{DType, Format};

/// Plain rows, and heads that lack their norm's factor; the residual on either side.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, step) in STEPS.iter().enumerate() {
        for (j, heads) in [None, Some((4, 32, 1)), Some((2, 64, 2)), None, Some((3, 128, 4))].into_iter().enumerate() {
            let cols = heads.map_or(256, |(heads, dim, _): (usize, usize, usize)| (heads * dim).next_multiple_of(128));
            let format = FORMATS[(5 * i + j) % FORMATS.len()];
            cases.push(case(*step, format, ([9, 37][j % 2], cols), heads));
        }
    }
    cases
}

/// The model's shapes.
pub fn true_shapes() -> Vec<LazyCase> {
    let of_heads = Some((32, 128, 128 / PART));
    at_shapes(TRUE_ROWS, &[None, of_heads], |step, heads| case(step, FORMATS[0], (2048, 4096), heads))
}

/// `heads`: how many, elements of each, sums of squares of each.
fn case(step: Step, format: Format, (outputs, cols): (usize, usize), heads: Option<(usize, usize, usize)>) -> Case {
    let mut b = CaseBuilder::new(step);
    let scale = heads.map(|(_, dim, parts)| {
        let x = b.normal(1, cols);
        let count = b.rows() * cols / dim * parts;
        let squares: Vec<f32> = (0..count).map(|_| dim as f32 * (1.5 + b.random.signed())).collect();
        HeadScale { x, squares: b.input(b.bucket(), cols / dim * parts, &squares), dim, eps: 1e-6 }
    });
    let x = if heads.is_some() { b.temp(b.bucket(), cols) } else { b.normal(1, cols) };
    let weight = b.matrix(1, outputs, cols, format);
    let (x, out) = (Activations::Full(x), b.temp(b.bucket(), outputs));
    let linear = Linear { rows: Rows::Tokens, x, weight, out, may_round: false };
    let residual = b.normal(1, outputs);
    let out = b.output(b.bucket(), outputs, DType::F32);
    let [x, y] = if outputs.is_multiple_of(2) { [linear.out, residual] } else { [residual, linear.out] };
    let add = Add { a: x, b: y, out };
    b.finish(&format!("{cols}→{outputs}, {format:?}, {heads:?}"), LinearAdd { linear, add, scale }, 1e-5)
}
