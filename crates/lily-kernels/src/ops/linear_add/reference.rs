//! Reference of `linear_add`: the ops it stands for, their results between in private memory.

use super::{HeadScale, LinearAdd};
use crate::inputs::StepInputs;
use crate::ops::linear::{Activations, Linear};
use crate::ops::{add, linear};
use crate::reference::Memory;
use crate::tensor::Tensor;

/// Factors, projection, residual.
pub fn run(op: &LinearAdd, mem: &mut Memory, inputs: &StepInputs) {
    let x = match &op.scale {
        Some(scale) => Activations::Full(scaled(scale, mem, inputs)),
        None => op.linear.x,
    };
    linear::reference::run(&Linear { x, ..op.linear.clone() }, mem, inputs);
    add::reference::run(&op.add, mem, inputs);
}

/// Each head times its factor.
fn scaled(scale: &HeadScale, mem: &mut Memory, inputs: &StepInputs) -> Tensor {
    let out = mem.private(&scale.x);
    for t in 0..inputs.num_tokens() {
        let (x, squares) = (mem.row(&scale.x, t), mem.row(&scale.squares, t));
        let parts = squares.len() / scale.heads();
        let heads = x.chunks(scale.dim).zip(squares.chunks(parts));
        let row: Vec<f64> = heads
            .flat_map(|(head, squares)| {
                let mean = squares.iter().sum::<f64>() / scale.dim as f64;
                let factor = 1.0 / (mean + f64::from(scale.eps)).sqrt();
                head.iter().map(move |v| v * factor)
            })
            .collect();
        mem.set_row(&out, t, &row);
    }
    out
}
