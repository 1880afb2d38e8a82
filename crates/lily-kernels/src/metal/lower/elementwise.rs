//! Ops of one thread an element.

use super::sources::{
    ADD, COMBINE_EXPERTS, GATHER_ROWS, MOE_OUTPUT, SHARED_EXPERT_ADD, SIGMOID_GATE, SPLIT_HEADS, SWIGLU,
};
use super::{Arguments, Prepared};
use crate::metal::step::Step;
use crate::ops::add::Add;
use crate::ops::combine_experts::CombineExperts;
use crate::ops::gather_rows::GatherRows;
use crate::ops::moe_output::MoeOutput;
use crate::ops::shared_expert_add::SharedExpertAdd;
use crate::ops::sigmoid_gate::SigmoidGate;
use crate::ops::split_heads::SplitHeads;
use crate::ops::swiglu::SwiGlu;
use crate::policy::Grid;

pub fn add<'a>(step: &Step<'a>, grid: Grid, o: &Add) -> Prepared<'a> {
    Prepared::new(ADD, grid, vec![step.at(&o.a), step.at(&o.b), step.at(&o.out)])
        .arguments(Arguments::of(&[o.out.cols]))
}

pub fn swiglu<'a>(step: &Step<'a>, grid: Grid, o: &SwiGlu) -> Prepared<'a> {
    let buffers = vec![step.at(&o.gate), step.at(&o.up), step.at(&o.out)];
    Prepared::new(SWIGLU, grid, buffers).arguments(Arguments::of(&[o.out.cols]))
}

pub fn sigmoid_gate<'a>(step: &Step<'a>, grid: Grid, o: &SigmoidGate) -> Prepared<'a> {
    let buffers = vec![step.at(&o.x), step.at(&o.gate), step.at(&o.out)];
    Prepared::new(SIGMOID_GATE, grid, buffers).arguments(Arguments::of(&[
        o.x.cols,
        o.gate.cols,
        o.x.cols / o.heads,
        o.stride,
        o.start,
    ]))
}

pub fn split_heads<'a>(step: &Step<'a>, grid: Grid, o: &SplitHeads) -> Prepared<'a> {
    let [a, b, c] = o.parts.widths;
    Prepared::new(SPLIT_HEADS, grid, vec![step.at(&o.x), step.at(&o.out)]).arguments(Arguments::of(&[
        o.x.cols,
        o.out.cols,
        o.heads,
        o.stride(),
        o.parts.start,
        a,
        b,
        c,
    ]))
}

pub fn gather_rows<'a>(step: &Step<'a>, grid: Grid, o: &GatherRows) -> Prepared<'a> {
    let buffers = vec![step.at(&o.x), step.outputs(), step.at(&o.out)];
    Prepared::new(GATHER_ROWS, grid, buffers).arguments(Arguments::of(&[o.x.cols]))
}

pub fn combine_experts<'a>(step: &Step<'a>, grid: Grid, o: &CombineExperts) -> Prepared<'a> {
    let buffers = vec![step.at(&o.x), step.at(&o.weights), step.at(&o.out)];
    Prepared::new(COMBINE_EXPERTS, grid, buffers).arguments(Arguments::of(&[o.out.cols, o.weights.cols]))
}

pub fn shared_expert_add<'a>(step: &Step<'a>, grid: Grid, o: &SharedExpertAdd) -> Prepared<'a> {
    let buffers = vec![step.at(&o.x), step.at(&o.shared), step.at(&o.gate), step.at(&o.out)];
    Prepared::new(SHARED_EXPERT_ADD, grid, buffers).arguments(Arguments::of(&[o.out.cols]))
}

pub fn moe_output<'a>(step: &Step<'a>, grid: Grid, o: &MoeOutput) -> Prepared<'a> {
    let tensors = [&o.combine.x, &o.combine.weights, &o.shared.shared, &o.shared.gate, &o.add.a, &o.add.out];
    let buffers = tensors.into_iter().map(|t| step.at(t)).collect();
    Prepared::new(MOE_OUTPUT, grid, buffers).arguments(Arguments::of(&[o.add.out.cols, o.combine.weights.cols]))
}
