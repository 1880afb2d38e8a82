//! Ops with weights.

use super::{Arguments, Prepared, source, type_code};
use crate::metal::device::{Place, SIMD, Source};
use crate::metal::step::Step;
use crate::ops::embed::Embed;
use crate::ops::expert_gate_up::ExpertGateUp;
use crate::ops::expert_linear::ExpertLinear;
use crate::ops::group_rows::Groups;
use crate::ops::linear::{Activations, Linear};
use crate::tensor::{FileSlice, Format, Matrix, Tensor};

/// Simdgroups of a threadgroup, and outputs of each (`ROWS` in `matmul.metal`).
const SIMDGROUPS: usize = 2;
const OUTPUTS: usize = 4;

/// Why a matmul cannot run here.
pub fn unsupported(x: &Activations, weight: &Matrix) -> Option<String> {
    match x {
        Activations::Quantized(_) => Some("it computes with f32 activations, not with int8 ones".into()),
        Activations::Full(_) if stack(weight).is_none() => {
            Some("it needs the experts of a matrix one after the other in one file".into())
        }
        Activations::Full(_) => None,
    }
}

/// Where a stack begins, and the bytes from one matrix to the next, of elements, scales and biases.
struct Stack {
    first: [FileSlice; 3],
    steps: [usize; 3],
}

/// `None` if the matrices do not follow one another in equal steps.
fn stack(weight: &Matrix) -> Option<Stack> {
    let parts = |expert: usize| {
        let stored = &weight.stack[expert];
        // Dense weights have neither scales nor biases; a buffer is bound all the same.
        let (scales, biases) = stored.affine.unwrap_or((stored.weight, stored.weight));
        [stored.weight, scales, biases]
    };
    let first = parts(0);
    let next = parts(weight.experts().min(2) - 1);
    let mut steps = [0; 3];
    for i in 0..3 {
        steps[i] = next[i].offset.checked_sub(first[i].offset)?;
    }
    let follows = |expert: usize| {
        let at = |i: usize| first[i].offset + steps[i] * expert as u64;
        parts(expert).iter().enumerate().all(|(i, slice)| slice.file == first[i].file && slice.offset == at(i))
    };
    (0..weight.experts()).all(follows).then(|| Stack { first, steps: steps.map(|step| step as usize) })
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

/// Buffers of a stack, how far behind them its bytes begin, and its steps.
fn weights<'a>(step: &Step<'a>, weight: &Matrix) -> ([Place<'a>; 3], [usize; 3], [usize; 3]) {
    let stack = stack(weight).expect("`compile` refuses other stacks");
    let [a, b, c] = stack.first.map(|slice| step.file(&slice));
    ([a.0, b.0, c.0], [a.1, b.1, c.1], stack.steps)
}

/// A simdgroup for every four outputs of a row.
fn over(outputs: usize, rows: usize) -> ([usize; 2], usize) {
    ([outputs.div_ceil(SIMDGROUPS * OUTPUTS), rows], SIMDGROUPS * SIMD)
}

pub fn embed<'a>(step: &Step<'a>, o: &Embed) -> Prepared<'a> {
    const EMBED: Source = source!("linear/matmul", "embed/embed");
    let ([elements, scales, biases], [elements_at, scales_at, biases_at], _) = weights(step, &o.table);
    Prepared::new(EMBED, "embed", vec![step.at(&o.tokens), elements, scales, biases, step.at(&o.out)])
        .constants(&constants(o.table.format))
        .arguments(Arguments::of(&[o.table.cols, elements_at, scales_at, biases_at]))
        .elements(o.table.cols, step.tokens())
}

pub fn linear<'a>(step: &Step<'a>, o: &Linear) -> Prepared<'a> {
    const LINEAR: Source = source!("linear/matmul", "linear/linear");
    let ([elements, scales, biases], [elements_at, scales_at, biases_at], _) = weights(step, &o.weight);
    let (groups, threads) = over(o.weight.rows, step.inputs.rows(o.rows));
    let buffers = vec![step.at(full(&o.x)), elements, scales, biases, step.at(&o.out)];
    Prepared::new(LINEAR, "linear_rows", buffers)
        .constants(&constants(o.weight.format))
        .arguments(Arguments::of(&[o.weight.rows, o.weight.cols, elements_at, scales_at, biases_at]))
        .over(groups, threads)
}

/// `ExpertArguments` of `experts.metal`.
fn expert_arguments(o: &ExpertLinear, at: [usize; 3], steps: [usize; 3]) -> Arguments {
    let sizes = Arguments::of(&[o.weight.rows, o.weight.cols, o.groups.experts(), o.pairs_per_row()]);
    at.into_iter().chain(steps).fold(sizes, Arguments::count)
}

fn pairs(step: &Step, groups: &Groups) -> usize {
    step.tokens() * groups.top_k()
}

pub fn expert_linear<'a>(step: &Step<'a>, o: &ExpertLinear) -> Prepared<'a> {
    const EXPERT_LINEAR: Source = source!("linear/matmul", "expert_linear/experts", "expert_linear/expert_linear");
    let (places, at, steps) = weights(step, &o.weight);
    let (groups, threads) = over(o.weight.rows, pairs(step, &o.groups));
    let mut buffers = vec![step.at(full(&o.x)), step.at(&o.groups.offsets), step.at(&o.groups.order)];
    buffers.extend(places);
    buffers.push(step.at(&o.out));
    Prepared::new(EXPERT_LINEAR, "expert_linear_rows", buffers)
        .constants(&constants(o.weight.format))
        .arguments(expert_arguments(o, at, steps))
        .over(groups, threads)
}

pub fn expert_gate_up<'a>(step: &Step<'a>, o: &ExpertGateUp) -> Prepared<'a> {
    const EXPERT_GATE_UP: Source = source!("linear/matmul", "expert_linear/experts", "expert_gate_up/expert_gate_up");
    let (gate, up) = (&o.gate, &o.up);
    let (gate_places, gate_at, gate_steps) = weights(step, &gate.weight);
    let (up_places, up_at, up_steps) = weights(step, &up.weight);
    let (groups, threads) = over(gate.weight.rows, pairs(step, &gate.groups));
    let mut buffers = vec![step.at(full(&gate.x)), step.at(&gate.groups.offsets), step.at(&gate.groups.order)];
    buffers.extend(gate_places);
    buffers.extend(up_places);
    buffers.push(step.at(&o.act.out));
    Prepared::new(EXPERT_GATE_UP, "expert_gate_up_rows", buffers)
        .constants(&constants(gate.weight.format))
        .arguments(expert_arguments(gate, gate_at, gate_steps))
        .arguments(expert_arguments(up, up_at, up_steps))
        .over(groups, threads)
}
