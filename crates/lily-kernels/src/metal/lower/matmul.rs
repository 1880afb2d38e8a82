//! Ops with weights.

use super::sources::{EMBED, EXPERT_GATE_UP, EXPERT_LINEAR, LINEAR, LINEAR_TILE};
use super::{Arguments, Prepared, type_code};
use crate::metal::device::SIMD;
use crate::metal::step::Step;
use crate::metal::weights::Stack;
use crate::ops::embed::Embed;
use crate::ops::expert_gate_up::ExpertGateUp;
use crate::ops::expert_linear::ExpertLinear;
use crate::ops::group_rows::Groups;
use crate::ops::linear::{Activations, Linear};
use crate::tensor::{Format, Tensor};

/// Simdgroups of a threadgroup, and outputs of each (`ROWS` in `matmul.metal`).
const SIMDGROUPS: usize = 2;
const OUTPUTS: usize = 4;

/// Rows and outputs of a tile (`TILE` in `tile.metal`), and its simdgroups.
const TILE: usize = 32;
const TILE_SIMDGROUPS: usize = 4;
/// From so many rows on, tiles: they read a weight once, rows read it once each. Reckoned; no Mac has measured it.
const TILE_FROM: usize = 8;

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

/// A simdgroup for every four outputs of a row.
fn over(outputs: usize, rows: usize) -> ([usize; 2], usize) {
    ([outputs.div_ceil(SIMDGROUPS * OUTPUTS), rows], SIMDGROUPS * SIMD)
}

pub fn embed<'a>(step: &Step<'a>, o: &Embed) -> Prepared<'a> {
    let Stack { places: [elements, scales, biases], at: [elements_at, scales_at, biases_at], .. } =
        step.weights(&o.table);
    Prepared::new(EMBED, "embed", vec![step.at(&o.tokens), elements, scales, biases, step.at(&o.out)])
        .constants(&constants(o.table.format))
        .arguments(Arguments::of(&[o.table.cols, o.table.rows, elements_at, scales_at, biases_at]))
        .elements(o.table.cols, step.tokens())
}

pub fn linear<'a>(step: &Step<'a>, o: &Linear) -> Prepared<'a> {
    let rows = step.inputs.rows(o.rows);
    if rows >= TILE_FROM { linear_tile(step, o, rows) } else { linear_rows(step, o, rows) }
}

fn linear_rows<'a>(step: &Step<'a>, o: &Linear, rows: usize) -> Prepared<'a> {
    let Stack { places: [elements, scales, biases], at: [elements_at, scales_at, biases_at], .. } =
        step.weights(&o.weight);
    let (groups, threads) = over(o.weight.rows, rows);
    let buffers = vec![step.at(full(&o.x)), elements, scales, biases, step.at(&o.out)];
    Prepared::new(LINEAR, "linear_rows", buffers)
        .constants(&constants(o.weight.format))
        .arguments(Arguments::of(&[o.weight.rows, o.weight.cols, elements_at, scales_at, biases_at]))
        .over(groups, threads)
}

fn linear_tile<'a>(step: &Step<'a>, o: &Linear, rows: usize) -> Prepared<'a> {
    let Stack { places: [elements, scales, biases], at: [elements_at, scales_at, biases_at], .. } =
        step.weights(&o.weight);
    let buffers = vec![step.at(full(&o.x)), elements, scales, biases, step.at(&o.out)];
    Prepared::new(LINEAR_TILE, "linear_tile", buffers)
        .constants(&constants(o.weight.format))
        .arguments(Arguments::of(&[o.weight.rows, o.weight.cols, rows, elements_at, scales_at, biases_at]))
        .over([o.weight.rows.div_ceil(TILE), rows.div_ceil(TILE)], TILE_SIMDGROUPS * SIMD)
}

/// `ExpertArguments` of `experts.metal`.
fn expert_arguments(o: &ExpertLinear, stack: &Stack) -> Arguments {
    let sizes = Arguments::of(&[o.weight.rows, o.weight.cols, o.groups.experts(), o.pairs_per_row()]);
    stack.at.into_iter().chain(stack.steps).fold(sizes, Arguments::count)
}

fn pairs(step: &Step, groups: &Groups) -> usize {
    step.tokens() * groups.top_k()
}

pub fn expert_linear<'a>(step: &Step<'a>, o: &ExpertLinear) -> Prepared<'a> {
    let stack = step.weights(&o.weight);
    let (groups, threads) = over(o.weight.rows, pairs(step, &o.groups));
    let mut buffers = vec![step.at(full(&o.x)), step.at(&o.groups.offsets), step.at(&o.groups.order)];
    buffers.extend(stack.places);
    buffers.push(step.at(&o.out));
    Prepared::new(EXPERT_LINEAR, "expert_linear_rows", buffers)
        .constants(&constants(o.weight.format))
        .arguments(expert_arguments(o, &stack))
        .over(groups, threads)
}

pub fn expert_gate_up<'a>(step: &Step<'a>, o: &ExpertGateUp) -> Prepared<'a> {
    let (gate, up) = (&o.gate, &o.up);
    let (gate_stack, up_stack) = (step.weights(&gate.weight), step.weights(&up.weight));
    let (groups, threads) = over(gate.weight.rows, pairs(step, &gate.groups));
    let mut buffers = vec![step.at(full(&gate.x)), step.at(&gate.groups.offsets), step.at(&gate.groups.order)];
    buffers.extend(gate_stack.places);
    buffers.extend(up_stack.places);
    buffers.push(step.at(&o.act.out));
    Prepared::new(EXPERT_GATE_UP, "expert_gate_up_rows", buffers)
        .constants(&[constants(gate.weight.format), constants(up.weight.format)].concat())
        .arguments(expert_arguments(gate, &gate_stack))
        .arguments(expert_arguments(up, &up_stack))
        .over(groups, threads)
}
