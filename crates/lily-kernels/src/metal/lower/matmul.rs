//! Ops with weights.

use super::sources::{
    EMBED, EXPAND_WEIGHTS, EXPERT_GATE_UP, EXPERT_GATE_UP_TILE, EXPERT_LINEAR, EXPERT_LINEAR_TILE, LINEAR,
    LINEAR_TENSOR, LINEAR_TILE,
};
use super::{Arguments, Prepared, type_code};
use crate::metal::step::Step;
use crate::metal::weights::Stack;
use crate::ops::embed::Embed;
use crate::ops::expand_weights::ExpandWeights;
use crate::ops::expert_gate_up::ExpertGateUp;
use crate::ops::expert_linear::ExpertLinear;
use crate::ops::linear::{Activations, Linear};
use crate::policy::{Grid, lanes, x_rows};
use crate::tensor::{Format, Matrix, Tensor};

/// Why a matmul cannot run here.
pub fn unsupported(x: &Activations) -> Option<String> {
    match x {
        Activations::Quantized(_) => Some("it computes with f32 activations, not with int8 ones".into()),
        Activations::Full(_) => None,
    }
}

/// `Format` of `matmul.metal` as one number.
pub fn format_code(weight: &Matrix, stack: &Stack) -> u32 {
    let align = [16, 4, 1].into_iter().find(|a| stack.is_aligned(weight, *a)).unwrap_or(1);
    let code = match weight.format {
        Format::Dense(dtype) => 1 | type_code(dtype) << 1,
        Format::Affine { bits, group, scale } => type_code(scale) << 1 | u32::from(bits) << 3 | u32::from(group) << 7,
    };
    code | (align as u32) << 17
}

pub fn full(x: &Activations) -> &Tensor {
    match x {
        Activations::Full(x) => x,
        Activations::Quantized(_) => unreachable!("`compile` refuses int8 activations"),
    }
}

pub fn embed<'a>(step: &Step<'a>, grid: Grid, o: &Embed) -> Prepared<'a> {
    let stack = step.weights(&o.table);
    let mut buffers = vec![step.at(&o.tokens)];
    buffers.extend(stack.places);
    buffers.push(step.at(&o.out));
    Prepared::new(EMBED, grid, buffers)
        .constants(&[format_code(&o.table, &stack), 1])
        .arguments(Arguments::of(&[o.table.cols, o.table.rows]).counts(&stack.at))
}

pub fn expand_weights<'a>(step: &Step<'a>, grid: Grid, o: &ExpandWeights) -> Prepared<'a> {
    let stack = step.weights(&o.weight);
    let mut buffers = stack.places.to_vec();
    buffers.push(step.at(&o.out));
    Prepared::new(EXPAND_WEIGHTS, grid, buffers)
        .constants(&[format_code(&o.weight, &stack), 1])
        .arguments(Arguments::of(&[o.weight.rows, o.weight.cols]).counts(&stack.at).counts(&stack.steps))
}

pub fn linear<'a>(step: &Step<'a>, grid: Grid, o: &Linear) -> Prepared<'a> {
    let stack = step.weights(&o.weight);
    let mut buffers = vec![step.at(full(&o.x))];
    buffers.extend(stack.places);
    buffers.push(step.at(&o.out));
    let (outputs, inputs, rows) = (o.weight.rows, o.weight.cols, step.inputs.rows(o.rows));
    let format = format_code(&o.weight, &stack);
    if grid.kernel != "linear_rows" {
        let source = if grid.kernel == "linear_tensor" { LINEAR_TENSOR } else { LINEAR_TILE };
        return Prepared::new(source, grid, buffers)
            .constants(&[format, 1])
            .arguments(Arguments::of(&[outputs, inputs, rows]).counts(&stack.at));
    }
    Prepared::new(LINEAR, grid, buffers)
        .constants(&[format, x_rows(rows) as u32])
        .arguments(Arguments::of(&[outputs, inputs, rows, lanes(inputs)]).counts(&stack.at))
}

/// `ExpertArguments` of `experts.metal`.
fn expert_arguments(o: &ExpertLinear, stack: &Stack) -> Arguments {
    let inputs = o.weight.cols;
    Arguments::of(&[o.weight.rows, inputs, o.groups.experts(), o.pairs_per_row(), lanes(inputs)])
        .counts(&stack.at)
        .counts(&stack.steps)
}

pub fn expert_linear<'a>(step: &Step<'a>, grid: Grid, o: &ExpertLinear) -> Prepared<'a> {
    let stack = step.weights(&o.weight);
    let mut buffers = vec![step.at(full(&o.x)), step.at(&o.groups.offsets), step.at(&o.groups.order)];
    buffers.extend(stack.places);
    buffers.push(step.at(&o.out));
    let source = if grid.kernel == "expert_linear_rows" { EXPERT_LINEAR } else { EXPERT_LINEAR_TILE };
    Prepared::new(source, grid, buffers)
        .constants(&[format_code(&o.weight, &stack), 1])
        .arguments(expert_arguments(o, &stack))
}

pub fn expert_gate_up<'a>(step: &Step<'a>, grid: Grid, o: &ExpertGateUp) -> Prepared<'a> {
    let (gate, up) = (&o.gate, &o.up);
    let (gate_stack, up_stack) = (step.weights(&gate.weight), step.weights(&up.weight));
    let mut buffers = vec![step.at(full(&gate.x)), step.at(&gate.groups.offsets), step.at(&gate.groups.order)];
    buffers.extend(gate_stack.places);
    buffers.extend(up_stack.places);
    buffers.push(step.at(&o.act.out));
    let source = if grid.kernel == "expert_gate_up_rows" { EXPERT_GATE_UP } else { EXPERT_GATE_UP_TILE };
    Prepared::new(source, grid, buffers)
        .constants(&[format_code(&gate.weight, &gate_stack), 1, format_code(&up.weight, &up_stack)])
        .arguments(expert_arguments(gate, &gate_stack))
        .arguments(expert_arguments(up, &up_stack))
}
