//! Cases of `linear`, and the formats and activations that the expert ops share.

use super::{Activations, Linear};
use crate::check::{Case, CaseBuilder, LazyCase, STEPS, Step, TRUE_ROWS, at_shapes};
use crate::op::{Op, Rows};
use crate::ops::quantize_rows::{GROUP, Quantized};
use crate::tensor::{DType, Format};

const fn affine(bits: u8, group: u16, scale: DType) -> Format {
    Format::Affine { bits, group, scale }
}

/// Every weight format that a checkpoint may hold.
pub const FORMATS: &[Format] = &[
    affine(4, 64, DType::Bf16),
    affine(8, 64, DType::Bf16),
    affine(4, 64, DType::F16),
    affine(4, 64, DType::F32),
    affine(2, 64, DType::Bf16),
    affine(3, 64, DType::Bf16),
    affine(5, 64, DType::F16),
    affine(6, 64, DType::Bf16),
    affine(8, 64, DType::F32),
    affine(4, 32, DType::Bf16),
    affine(4, 128, DType::Bf16),
    affine(8, 32, DType::F16),
    affine(6, 128, DType::Bf16),
    affine(3, 32, DType::Bf16),
    Format::Dense(DType::Bf16),
    Format::Dense(DType::F16),
    Format::Dense(DType::F32),
];

/// Every format with f32 activations, and with int8 ones where the contract allows them.
pub fn formats() -> Vec<(Format, bool)> {
    let mut all: Vec<(Format, bool)> = FORMATS.iter().map(|f| (*f, false)).collect();
    all.extend(FORMATS.iter().filter(|f| f.takes_int8(GROUP)).map(|f| (*f, true)));
    all
}

/// The number of inputs nearest to `cols` that is whole groups.
pub fn whole_groups(format: Format, cols: usize) -> usize {
    match format {
        Format::Affine { group, .. } => cols.next_multiple_of(group.into()),
        Format::Dense(_) => cols,
    }
}

/// Activations of a case, `per_row` rows for each row of the step.
pub fn activations(b: &mut CaseBuilder, per_row: usize, cols: usize, quantized: bool) -> Activations {
    if !quantized {
        return Activations::Full(b.normal(per_row, cols));
    }
    let (rows, bucket) = (b.rows() * per_row, b.bucket() * per_row);
    let codes: Vec<i8> = (0..rows * cols).map(|_| (b.random.below(255) as i32 - 127) as i8).collect();
    let scales: Vec<f32> = codes.chunks(GROUP).map(|_| (1.5 + b.random.signed()) / 73.0).collect();
    let total = |group: &[i8]| group.iter().map(|c| i32::from(*c)).sum::<i32>() as f32;
    let sums: Vec<f32> = codes.chunks(GROUP).zip(&scales).map(|(group, s)| s * total(group)).collect();
    Activations::Quantized(Quantized {
        codes: b.input_codes(bucket, cols, &codes),
        scales: b.input(bucket, cols / GROUP, &scales),
        sums: b.input(bucket, cols / GROUP, &sums),
    })
}

/// A chunk of more rows than any kernel takes at once.
pub const LONG: Step = Step::Prefill { bucket: 64, start: 0, rows: 57 };

/// Inputs of the cases whose weights begin at multiples of 16 bytes.
pub const ALIGNED_COLS: usize = 256;

/// Outputs that fill no vector; inputs of one group, two and five.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, step) in STEPS.iter().enumerate() {
        for (j, (format, quantized)) in formats().into_iter().enumerate() {
            let shapes: [(usize, usize); 6] = [(5, 64), (8, 128), (13, 320), (33, 128), (1, 320), (16, 64)];
            let (n, k) = shapes[(i + j) % shapes.len()];
            let form = (format, quantized);
            cases.push(case(*step, form, (n, whole_groups(format, k)), Rows::Tokens));
            if j < 2 || quantized {
                cases.push(case(*step, form, (37, 128), Rows::Outputs));
            }
        }
    }
    for format in [FORMATS[0], Format::Dense(DType::Bf16)] {
        cases.push(case(LONG, (format, false), (70, 64), Rows::Tokens));
        cases.push(rounded(case(LONG, (format, false), (70, 64), Rows::Tokens)));
    }
    for format in FORMATS {
        for step in [STEPS[1], STEPS[3]] {
            cases.push(case(step, (*format, false), (66, ALIGNED_COLS), Rows::Tokens));
        }
    }
    cases
}

/// The same, of a product that may be of bf16 numbers, as bulk weights' are in half precision.
fn rounded(mut case: Case) -> Case {
    if let Op::Linear(o) = &mut case.plan.dispatches[0].op {
        o.may_round = true;
    }
    case.tolerance = 3e-2;
    case.name.push_str(", may round");
    case
}

/// The model's shapes.
pub fn true_shapes() -> Vec<LazyCase> {
    let (four, eight) = (FORMATS[0], FORMATS[1]);
    let shapes = [
        (four, 8192, 2048), // q_proj, in_proj_qkv
        (four, 4096, 2048), // in_proj_z
        (four, 2048, 4096), // o_proj, out_proj
        (four, 512, 2048),  // k_proj, v_proj; the shared expert's gate_proj, up_proj
        (four, 2048, 512),  // its down_proj
        (four, 32, 2048),   // in_proj_a, in_proj_b
        (eight, 256, 2048), // mlp.gate
        (eight, 1, 2048),   // shared_expert_gate
    ];
    let mut cases =
        at_shapes(TRUE_ROWS, &shapes, |step, (format, n, k)| case(step, (format, false), (n, k), Rows::Tokens));
    // lm_head: one row, two, and so many that the kernel for many takes them.
    let heads = [TRUE_ROWS[0], TRUE_ROWS[1], Step::Prefill { bucket: 64, start: 300, rows: 20 }];
    let head = |step, (format, n, k)| case(step, (format, false), (n, k), Rows::Outputs);
    cases.extend(at_shapes(&heads, &[(four, 248_320, 2048)], head));
    cases
}

/// Rows with logits write to `Space::Logits`, as the model's head does.
fn case(step: Step, form: (Format, bool), shape: (usize, usize), rows: Rows) -> Case {
    let ((format, quantized), (n, k)) = (form, shape);
    let mut b = CaseBuilder::new(step);
    if k == ALIGNED_COLS {
        b.align_weights();
    }
    let x = activations(&mut b, 1, k, quantized);
    let weight = b.matrix(1, n, k, format);
    let out = match rows {
        Rows::Tokens => b.output(b.bucket(), n, DType::F32),
        Rows::Outputs => {
            // Fewer than there are tokens, so that the two counts cannot be confused.
            let outputs = b.rows().div_ceil(2) as u32;
            b.outputs(&Vec::from_iter(0..outputs));
            b.logits(n, &[])
        }
    };
    let form = if quantized { "int8" } else { "f32" };
    b.finish(
        &format!("{k}→{n}, {format:?} × {form}, {rows:?}"),
        Linear { rows, x, weight, out, may_round: false },
        1e-5,
    )
}
