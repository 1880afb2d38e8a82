//! Cases of `rms_norm`.

use super::RmsNorm;
use crate::check::{Case, CaseBuilder, LazyCase, STEPS, Step, TRUE_ROWS, at_shapes};
use crate::op::Rows;
use crate::tensor::DType;

/// Whole rows and strided heads; token rows and output rows.
pub fn cases() -> Vec<Case> {
    let shapes = [
        (1, 67, 67, Rows::Tokens),
        (1, 320, 320, Rows::Outputs),
        (3, 64, 128, Rows::Tokens),
        (2, 256, 512, Rows::Tokens),
        (4, 128, 128, Rows::Tokens),
    ];
    STEPS.iter().flat_map(|step| shapes.map(|shape| case(*step, shape))).collect()
}

/// The model's shapes.
pub fn true_shapes() -> Vec<LazyCase> {
    at_shapes(
        TRUE_ROWS,
        &[
            (1, 2048, 2048, Rows::Tokens),
            (1, 2048, 2048, Rows::Outputs),
            (16, 256, 512, Rows::Tokens),
            (2, 256, 256, Rows::Tokens),
        ],
        case,
    )
}

fn case(step: Step, shape: (usize, usize, usize, Rows)) -> Case {
    let (heads, dim, stride, rows) = shape;
    let mut b = CaseBuilder::new(step);
    if rows == Rows::Outputs {
        let outputs = b.rows().div_ceil(2) as u32;
        b.outputs(&Vec::from_iter(0..outputs));
    }
    let x = b.normal(1, heads * stride);
    let values = b.random.normals(dim, 1.0);
    let weight = b.constant(1, &values);
    let out = b.output(b.bucket(), heads * dim, DType::F32);
    let op = RmsNorm { rows, x, weight, out, heads, stride, eps: 1e-6 };
    b.finish(&format!("{heads} × {dim} every {stride}, {rows:?}"), op, 2e-6)
}
