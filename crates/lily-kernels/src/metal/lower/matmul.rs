//! Ops with weights.

use super::sources::{
    EMBED, EXPERT_GATE_UP, EXPERT_GATE_UP_TILE, EXPERT_LINEAR, EXPERT_LINEAR_TILE, LINEAR, LINEAR_TILE,
};
use super::{Arguments, Prepared, type_code};
use crate::metal::step::Step;
use crate::metal::weights::Stack;
use crate::ops::embed::Embed;
use crate::ops::expert_gate_up::ExpertGateUp;
use crate::ops::expert_linear::ExpertLinear;
use crate::ops::linear::{Activations, Linear};
use crate::policy::Grid;
use crate::tensor::{Format, Tensor};

/// Why a matmul cannot run here.
pub fn unsupported(x: &Activations) -> Option<String> {
    match x {
        Activations::Quantized(_) => Some("it computes with f32 activations, not with int8 ones".into()),
        Activations::Full(_) => None,
    }
}

/// Function constants of `matmul.metal`.
fn constants(format: Format) -> [u32; 4] {
    match format {
        Format::Dense(dtype) => [1, type_code(dtype), 8, 1],
        Format::Affine { bits, group, scale } => [0, type_code(scale), bits.into(), group.into()],
    }
}

fn full(x: &Activations) -> &Tensor {
    match x {
        Activations::Full(x) => x,
        Activations::Quantized(_) => unreachable!("`compile` refuses int8 activations"),
    }
}

pub fn embed<'a>(step: &Step<'a>, grid: Grid, o: &Embed) -> Prepared<'a> {
    let Stack { places: [elements, scales, biases], at: [elements_at, scales_at, biases_at], .. } =
        step.weights(&o.table);
    Prepared::new(EMBED, grid, vec![step.at(&o.tokens), elements, scales, biases, step.at(&o.out)])
        .constants(&constants(o.table.format))
        .arguments(Arguments::of(&[o.table.cols, elements_at, scales_at, biases_at]))
}

pub fn linear<'a>(step: &Step<'a>, grid: Grid, o: &Linear) -> Prepared<'a> {
    if grid.kernel.starts_with("linear_tile") { linear_tile(step, grid, o) } else { linear_rows(step, grid, o) }
}

fn linear_rows<'a>(step: &Step<'a>, grid: Grid, o: &Linear) -> Prepared<'a> {
    let Stack { places: [elements, scales, biases], at: [elements_at, scales_at, biases_at], .. } =
        step.weights(&o.weight);
    let buffers = vec![step.at(full(&o.x)), elements, scales, biases, step.at(&o.out)];
    Prepared::new(LINEAR, grid, buffers).constants(&constants(o.weight.format)).arguments(Arguments::of(&[
        o.weight.rows,
        o.weight.cols,
        elements_at,
        scales_at,
        biases_at,
    ]))
}

fn linear_tile<'a>(step: &Step<'a>, grid: Grid, o: &Linear) -> Prepared<'a> {
    let Stack { places: [elements, scales, biases], at: [elements_at, scales_at, biases_at], .. } =
        step.weights(&o.weight);
    let buffers = vec![step.at(full(&o.x)), elements, scales, biases, step.at(&o.out)];
    Prepared::new(LINEAR_TILE, grid, buffers).constants(&constants(o.weight.format)).arguments(Arguments::of(&[
        o.weight.rows,
        o.weight.cols,
        step.inputs.rows(o.rows),
        elements_at,
        scales_at,
        biases_at,
    ]))
}

/// `ExpertArguments` of `experts.metal`.
fn expert_arguments(o: &ExpertLinear, stack: &Stack) -> Arguments {
    let sizes = Arguments::of(&[o.weight.rows, o.weight.cols, o.groups.experts(), o.pairs_per_row()]);
    stack.at.into_iter().chain(stack.steps).fold(sizes, Arguments::count)
}

pub fn expert_linear<'a>(step: &Step<'a>, grid: Grid, o: &ExpertLinear) -> Prepared<'a> {
    let stack = step.weights(&o.weight);
    let mut buffers = vec![step.at(full(&o.x)), step.at(&o.groups.offsets), step.at(&o.groups.order)];
    buffers.extend(stack.places);
    buffers.push(step.at(&o.out));
    let source = if grid.kernel == "expert_linear_rows" { EXPERT_LINEAR } else { EXPERT_LINEAR_TILE };
    Prepared::new(source, grid, buffers).constants(&constants(o.weight.format)).arguments(expert_arguments(o, &stack))
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
        .constants(&[constants(gate.weight.format), constants(up.weight.format)].concat())
        .arguments(expert_arguments(gate, &gate_stack))
        .arguments(expert_arguments(up, &up_stack))
}
