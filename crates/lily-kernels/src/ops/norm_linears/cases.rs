//! Cases of `norm_linears`.

use super::NormLinears;
use crate::check::{Case, CaseBuilder, LazyCase, STEPS, Step, TRUE_ROWS, at_shapes};
use crate::op::Rows;
use crate::ops::linear::cases::FORMATS;
use crate::ops::linear::{Activations, Linear};
use crate::ops::rms_norm::RmsNorm;
use crate::tensor::{DType, Format};

/// One to four projections of several widths, formats in turn.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, step) in STEPS.iter().enumerate() {
        for (j, widths) in [&[33][..], &[8, 5], &[64, 7, 16], &[40, 24, 3, 3]].into_iter().enumerate() {
            let formats: Vec<Format> =
                (0..widths.len()).map(|k| FORMATS[(5 * i + 3 * j + k) % FORMATS.len()]).collect();
            let rows = if i == j { Rows::Outputs } else { Rows::Tokens };
            cases.push(case(*step, widths, &formats, [128, 256, 384][(i + j) % 3], rows));
        }
    }
    cases
}

/// The model's shapes.
pub fn true_shapes() -> Vec<LazyCase> {
    let (four, eight) = (FORMATS[0], FORMATS[1]);
    let shapes: [(&[usize], Format, Rows); 4] = [
        (&[8192, 4096, 32, 32], four, Rows::Tokens), // in_proj_qkv, in_proj_z, in_proj_b, in_proj_a
        (&[8192, 512, 512], four, Rows::Tokens),     // q_proj, k_proj, v_proj
        (&[256, 1], eight, Rows::Tokens),            // mlp.gate, shared_expert_gate
        (&[248_320], four, Rows::Outputs),           // lm_head
    ];
    at_shapes(&[TRUE_ROWS[0], TRUE_ROWS[1]], &shapes, |step, (widths, format, rows)| {
        case(step, widths, &vec![format; widths.len()], 2048, rows)
    })
}

fn case(step: Step, widths: &[usize], formats: &[Format], cols: usize, rows: Rows) -> Case {
    let mut b = CaseBuilder::new(step);
    let x = b.normal(1, cols);
    let values = b.random.normals(cols, 1.0);
    let weight = b.constant(1, &values);
    let out = b.output(b.bucket(), cols, DType::F32);
    let norm = RmsNorm { rows, x, weight, out, heads: 1, stride: cols, eps: 1e-6 };
    if rows == Rows::Outputs {
        b.outputs(&Vec::from_iter(0..b.rows().div_ceil(2) as u32));
    }
    let linears = widths.iter().zip(formats).map(|(width, format)| Linear {
        may_round: false,
        rows,
        x: Activations::Full(out),
        weight: b.matrix(1, *width, cols, *format),
        out: b.output(b.bucket(), *width, DType::F32),
    });
    let linears = linears.collect();
    b.finish(&format!("{cols}→{widths:?}, {formats:?}, {rows:?}"), NormLinears { norm, linears }, 1e-5)
}
