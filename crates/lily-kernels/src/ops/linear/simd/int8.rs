//! int8 activations: per group of 64 an exact int32 dot, then f32 in group order.

use std::ops::Range;

use crate::cpu::columns::ColumnsMut;
use crate::cpu::isa::multiversion;
use crate::cpu::lanes::Lanes;
use crate::ops::linear::simd::decode::code_at;
use crate::ops::linear::simd::{MatrixBytes, RowMap, float_at};
use crate::ops::quantize_rows::GROUP;
use crate::tensor::Format;

/// Quantized rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Activations<'a> {
    pub codes: &'a [i8],
    pub scales: &'a [f32],
    pub sums: &'a [f32],
}

/// Bytes of scratch for K inputs.
pub(super) const fn scratch_bytes(cols: usize) -> usize {
    cols
}

multiversion! {
    pub(super) fn matmul(
        w: &MatrixBytes,
        x: &Activations,
        rows: &RowMap,
        columns: Range<usize>,
        scratch: &mut [f32],
        out: &mut ColumnsMut,
    ) = matmul_body;
}

#[inline(always)]
#[expect(
    clippy::extra_unused_type_parameters,
    reason = "the compiler vectorizes it"
)]
fn matmul_body<_V: Lanes>(
    w: &MatrixBytes,
    x: &Activations,
    rows: &RowMap,
    columns: Range<usize>,
    scratch: &mut [f32],
    out: &mut ColumnsMut,
) {
    let Format::Affine { bits, scale, .. } = w.format else {
        return;
    };
    let groups = w.cols / GROUP;
    let codes: &mut [u8] = bytemuck::cast_slice_mut(scratch);
    let codes = &mut codes[..w.cols];
    for column in columns.clone() {
        let row = &w.weight[column * w.row_bytes()..][..w.row_bytes()];
        for (i, code) in codes.iter_mut().enumerate() {
            *code = code_at(row, bits, i);
        }
        for i in 0..rows.len() {
            let input = rows.input(i);
            let mut acc = 0.0;
            for g in 0..groups {
                let x_codes = &x.codes[input * w.cols + g * GROUP..][..GROUP];
                let pairs = codes[g * GROUP..].iter().zip(x_codes);
                let d: i32 = pairs.map(|(&w, &x)| i32::from(w) * i32::from(x)).sum();
                let (at, x_at) = (column * groups + g, input * groups + g);
                acc += (float_at(w.scales, scale, at) * x.scales[x_at]) * d as f32;
                acc += float_at(w.biases, scale, at) * x.sums[x_at];
            }
            out.row(rows.output(i))[column - columns.start] = acc;
        }
    }
}
