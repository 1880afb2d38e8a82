//! Norms and routing: ops that look at whole rows.

use super::sources::{GATED_RMS_NORM, GROUP_ROWS, L2_NORM, RMS_NORM, ROUTER_TOP_K};
use super::{Arguments, Prepared};
use crate::metal::device::SIMD;
use crate::metal::step::Step;
use crate::ops::gated_rms_norm::GatedRmsNorm;
use crate::ops::group_rows::GroupRows;
use crate::ops::l2_norm::L2Norm;
use crate::ops::rms_norm::RmsNorm;
use crate::ops::router_top_k::RouterTopK;

/// Most threads of a threadgroup that shares one task.
const ROW_THREADS: usize = 256;

pub fn rms_norm<'a>(step: &Step<'a>, o: &RmsNorm) -> Prepared<'a> {
    let dim = o.dim();
    let buffers = vec![step.at(&o.x), step.at(&o.weight), step.at(&o.out)];
    Prepared::new(RMS_NORM, "rms_norm", buffers)
        .arguments(Arguments::of(&[o.x.cols, o.out.cols, dim, o.stride]).float(o.eps))
        .over([o.heads, step.inputs.rows(o.rows)], dim.next_multiple_of(SIMD).min(ROW_THREADS))
}

pub fn l2_norm<'a>(step: &Step<'a>, o: &L2Norm) -> Prepared<'a> {
    Prepared::new(L2_NORM, "l2_norm", vec![step.at(&o.x), step.at(&o.out)])
        .arguments(Arguments::of(&[o.x.cols, o.out.cols, o.dim]))
        .over([o.out.cols / o.dim, step.tokens()], SIMD)
}

pub fn gated_rms_norm<'a>(step: &Step<'a>, o: &GatedRmsNorm) -> Prepared<'a> {
    let buffers = vec![step.at(&o.y), step.at(&o.z), step.at(&o.weight), step.at(&o.out)];
    Prepared::new(GATED_RMS_NORM, "gated_rms_norm", buffers)
        .arguments(Arguments::of(&[o.out.cols, o.weight.cols]).float(o.eps))
        .over([o.out.cols / o.weight.cols, step.tokens()], SIMD)
}

pub fn router_top_k<'a>(step: &Step<'a>, o: &RouterTopK) -> Prepared<'a> {
    let buffers = vec![step.at(&o.logits), step.at(&o.experts), step.at(&o.weights)];
    Prepared::new(ROUTER_TOP_K, "router_top_k", buffers)
        .arguments(Arguments::of(&[o.logits.cols, o.experts.cols]))
        .over([1, step.tokens()], SIMD)
}

pub fn group_rows<'a>(step: &Step<'a>, o: &GroupRows) -> Prepared<'a> {
    let experts = o.groups.experts();
    let buffers = vec![step.at(&o.experts), step.at(&o.groups.offsets), step.at(&o.groups.order)];
    Prepared::new(GROUP_ROWS, "group_rows", buffers)
        .arguments(Arguments::of(&[step.tokens() * o.groups.top_k(), experts]))
        .over([1, 1], experts.next_multiple_of(SIMD).min(ROW_THREADS))
}
