//! Reference of `linear`, and the product that `expert_linear` shares.

use super::{Activations, Linear};
use crate::inputs::StepInputs;
use crate::ops::quantize_rows::{GROUP, Quantized, place};
use crate::reference::Memory;
use crate::reference::math::dot;
use crate::reference::weights::{affine_row, matrix_row};
use crate::tensor::{Matrix, Tensor};

/// `out = x · Wᵀ`.
pub fn run(op: &Linear, mem: &mut Memory, inputs: &StepInputs) {
    let rows: Vec<(usize, usize)> = (0..inputs.rows(op.rows)).map(|r| (r, r)).collect();
    multiply(mem, &op.x, (&op.weight, 0), &op.out, &rows);
}

/// `out[o] = x[i] · Wᵀ` for each `(i, o)` of `rows`; `weight` is a stack and the number of one matrix in it.
pub fn multiply(mem: &mut Memory, x: &Activations, weight: (&Matrix, usize), out: &Tensor, rows: &[(usize, usize)]) {
    let products = match x {
        Activations::Full(x) => full(mem, x, weight, rows),
        Activations::Quantized(x) => quantized(mem, x, weight, rows),
    };
    for ((_, o), row) in rows.iter().zip(&products) {
        mem.set_row(out, *o, row);
    }
}

/// f32 activations times decoded weights.
fn full(mem: &mut Memory, x: &Tensor, weight: (&Matrix, usize), rows: &[(usize, usize)]) -> Vec<Vec<f64>> {
    let (matrix, expert) = weight;
    let x: Vec<Vec<f64>> = rows.iter().map(|(i, _)| mem.row(x, *i)).collect();
    let mut products = vec![Vec::with_capacity(matrix.rows); rows.len()];
    for n in 0..matrix.rows {
        let w = matrix_row(mem, matrix, expert, n);
        for (product, x) in products.iter_mut().zip(&x) {
            product.push(dot(x, &w));
        }
    }
    products
}

/// One quantized row of activations.
struct QuantizedRow {
    codes: Vec<i8>,
    scales: Vec<f64>,
    sums: Vec<f64>,
}

/// Per 64 inputs, or per group where that is smaller, `scale·x_scale·(exact integer dot product) + bias·x_sum`.
fn quantized(mem: &mut Memory, x: &Quantized, weight: (&Matrix, usize), rows: &[(usize, usize)]) -> Vec<Vec<f64>> {
    let (matrix, expert) = weight;
    let mut load = |row: usize| QuantizedRow {
        codes: mem.codes(&x.codes, row),
        scales: mem.row(&x.scales, row),
        sums: mem.row(&x.sums, row),
    };
    let x: Vec<QuantizedRow> = rows.iter().map(|(i, _)| load(*i)).collect();
    let mut products = vec![Vec::with_capacity(matrix.rows); rows.len()];
    for n in 0..matrix.rows {
        let w = affine_row(mem, matrix, expert, n);
        for (product, x) in products.iter_mut().zip(&x) {
            let run = GROUP.min(w.group);
            let of_run = |first: usize| {
                let range = first..first + run;
                let code = |k: usize| i64::from(x.codes[k / GROUP * GROUP + place(k % GROUP)]);
                let dot: i64 = range.clone().map(|k| i64::from(w.codes[k]) * code(k)).sum();
                let (scale, bias) = (w.scales[first / w.group], w.biases[first / w.group]);
                let x_scale = x.scales[first / GROUP];
                let x_sum =
                    if run == GROUP { x.sums[first / GROUP] } else { x_scale * range.map(code).sum::<i64>() as f64 };
                scale * x_scale * dot as f64 + bias * x_sum
            };
            product.push((0..matrix.cols).step_by(run).map(of_run).sum());
        }
    }
    products
}
