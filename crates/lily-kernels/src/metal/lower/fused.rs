//! Several ops with weights as one.

use super::matmul::{format_code, full};
use super::sources::{LINEAR_ADD, MOE_DOWN, MOE_GATE_UP, NORM_LINEARS};
use super::{Arguments, Prepared};
use crate::metal::step::Step;
use crate::ops::linear_add::LinearAdd;
use crate::ops::moe_down::MoeDown;
use crate::ops::moe_gate_up::MoeGateUp;
use crate::ops::norm_linears::{MOST, NormLinears};
use crate::policy::{Grid, first_groups, lanes, x_rows};

pub fn norm_linears<'a>(step: &Step<'a>, grid: Grid, o: &NormLinears) -> Prepared<'a> {
    let (norm, rows, inputs) = (&o.norm, step.inputs.rows(o.norm.rows), o.norm.out.cols);
    let mut buffers = vec![step.at(&norm.x), step.at(&norm.weight), step.at(&norm.out)];
    let (mut formats, mut parts) = (Vec::new(), Arguments::default());
    let first_groups = first_groups(o);
    for i in 0..MOST {
        // Where there are fewer projections the first stands for those that are not there; no threadgroup takes them.
        let which = if i < o.linears.len() { i } else { 0 };
        let linear = &o.linears[which];
        let stack = step.weights(&linear.weight);
        buffers.extend(stack.places);
        buffers.push(step.at(&linear.out));
        formats.push(format_code(&linear.weight, &stack));
        parts = parts.counts(&[linear.weight.rows, first_groups[which]]).counts(&stack.at);
    }
    formats.insert(1, x_rows(rows) as u32);
    Prepared::new(NORM_LINEARS, grid, buffers)
        .constants(&formats)
        .arguments(Arguments::of(&[inputs, rows, lanes(inputs), o.linears.len()]).float(norm.eps))
        .arguments(parts)
}

pub fn linear_add<'a>(step: &Step<'a>, grid: Grid, o: &LinearAdd) -> Prepared<'a> {
    let (weight, stack) = (&o.linear.weight, step.weights(&o.linear.weight));
    let rows = o.rows();
    // Without a scale the kernel reads no squares; something is bound all the same.
    let mut buffers = vec![step.at(&rows[0]), step.at(rows.last().unwrap_or(&rows[0]))];
    buffers.extend(stack.places);
    buffers.extend([step.at(o.residual()), step.at(&o.add.out)]);
    let (dim, squares, eps) = o.scale.map_or((weight.cols, 1, 0.0), |s| (s.dim, s.squares.cols, s.eps));
    let sizes = [weight.rows, weight.cols, step.tokens(), lanes(weight.cols)];
    Prepared::new(LINEAR_ADD, grid, buffers)
        .constants(&[format_code(weight, &stack), x_rows(step.tokens()) as u32, o.scale.is_some().into()])
        .arguments(Arguments::of(&sizes).counts(&stack.at).counts(&[dim, squares]).float(eps))
}

pub fn moe_gate_up<'a>(step: &Step<'a>, grid: Grid, o: &MoeGateUp) -> Prepared<'a> {
    let stacks = o.weights().map(|weight| step.weights(weight));
    let mut buffers = vec![step.at(full(&o.gate.x)), step.at(&o.experts)];
    buffers.extend(stacks.iter().flat_map(|stack| stack.places));
    buffers.extend([step.at(&o.routed.act.out), step.at(&o.act.out)]);
    let mut formats: Vec<u32> = o.weights().into_iter().zip(&stacks).map(|(w, stack)| format_code(w, stack)).collect();
    formats.insert(1, x_rows(step.tokens()) as u32);
    let inputs = o.gate.weight.cols;
    let outputs = [o.routed.gate.weight.rows, o.gate.weight.rows];
    let sizes = Arguments::of(&[inputs, step.tokens(), o.experts.cols, lanes(inputs)]).counts(&outputs);
    stacks.iter().fold(Prepared::new(MOE_GATE_UP, grid, buffers).constants(&formats).arguments(sizes), |p, stack| {
        p.arguments(Arguments::of(&stack.at).counts(&stack.steps))
    })
}

pub fn moe_down<'a>(step: &Step<'a>, grid: Grid, o: &MoeDown) -> Prepared<'a> {
    let (routed, shared) = (step.weights(&o.routed.weight), step.weights(&o.shared.weight));
    let rows = [full(&o.routed.x), full(&o.shared.x)];
    let mut buffers: Vec<_> = rows.into_iter().chain(o.rows()).map(|t| step.at(t)).collect();
    buffers.extend(routed.places);
    buffers.extend(shared.places);
    buffers.push(step.at(&o.output.add.out));
    let inputs = o.routed.weight.cols;
    let sizes = [inputs, o.shared.weight.cols, o.routed.weight.rows, step.tokens(), o.experts.cols, lanes(inputs)];
    let formats = [format_code(&o.routed.weight, &routed), x_rows(step.tokens()) as u32];
    Prepared::new(MOE_DOWN, grid, buffers)
        .constants(&[&formats[..], &[format_code(&o.shared.weight, &shared)]].concat())
        .arguments(Arguments::of(&sizes).counts(&routed.at).counts(&routed.steps).counts(&shared.at))
}
