//! Cases of `quantize_rows`.

use super::{GROUP, QuantizeRows, Quantized};
use crate::check::{Case, CaseBuilder, LazyCase, STEPS, Step, TRUE_ROWS, at_shapes};
use crate::op::Rows;
use crate::tensor::DType;

/// One row a token and several; token rows and output rows; groups of each kind of `special`.
pub fn cases() -> Vec<Case> {
    let shapes = [(1, 64, Rows::Tokens), (1, 320, Rows::Outputs), (3, 128, Rows::Tokens), (1, 384, Rows::Tokens)];
    STEPS.iter().flat_map(|step| shapes.map(|shape| case(*step, shape))).collect()
}

/// The model's shapes.
pub fn true_shapes() -> Vec<LazyCase> {
    at_shapes(TRUE_ROWS, &[(1, 2048, Rows::Tokens), (1, 4096, Rows::Tokens), (8, 512, Rows::Tokens)], case)
}

/// Groups whose codes are easy to get wrong: zeros, exact ties, one large value, very small and very large ones.
fn special(kind: usize, x: &mut [f32]) {
    match kind % 6 {
        0 => x.fill(0.0),
        1 => {
            // Scale 1: halves are ties.
            x.iter_mut().enumerate().for_each(|(i, v)| *v = i as f32 - 32.5);
            x[63] = -127.0;
        }
        2 => x[17] = 1e4,
        3 => x.iter_mut().for_each(|v| *v *= 1e-30),
        4 => x.iter_mut().for_each(|v| *v *= 1e30),
        _ => (),
    }
}

fn case(step: Step, shape: (usize, usize, Rows)) -> Case {
    let (per_row, cols, rows) = shape;
    let mut b = CaseBuilder::new(step);
    if rows == Rows::Outputs {
        let outputs = b.rows().div_ceil(2) as u32;
        b.outputs(&Vec::from_iter(0..outputs));
    }
    let mut values = b.random.normals(b.rows() * per_row * cols, 1.0);
    for (kind, group) in values.chunks_mut(GROUP).enumerate() {
        special(kind + cols / GROUP, group);
    }
    let bucket = b.bucket() * per_row;
    let x = b.input(bucket, cols, &values);
    let out = Quantized {
        codes: b.output(bucket, cols, DType::I8),
        scales: b.output(bucket, cols / GROUP, DType::F32),
        sums: b.output(bucket, cols / GROUP, DType::F32),
    };
    b.finish(&format!("{per_row} × {cols}, {rows:?}"), QuantizeRows { rows, per_row, x, out }, 0.0)
}
