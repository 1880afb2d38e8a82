//! Norms and routing: ops that look at whole rows.

use super::sources::{GATED_RMS_NORM, GROUP_ROWS, L2_NORM, RMS_NORM, ROUTER_TOP_K};
use super::{Arguments, Prepared};
use crate::metal::step::Step;
use crate::ops::gated_rms_norm::GatedRmsNorm;
use crate::ops::group_rows::GroupRows;
use crate::ops::l2_norm::L2Norm;
use crate::ops::rms_norm::RmsNorm;
use crate::ops::router_top_k::RouterTopK;
use crate::policy::Grid;

pub fn rms_norm<'a>(step: &Step<'a>, grid: Grid, o: &RmsNorm) -> Prepared<'a> {
    let buffers = vec![step.at(&o.x), step.at(&o.weight), step.at(&o.out)];
    Prepared::new(RMS_NORM, grid, buffers)
        .arguments(Arguments::of(&[o.x.cols, o.out.cols, o.dim(), o.stride]).float(o.eps))
}

pub fn l2_norm<'a>(step: &Step<'a>, grid: Grid, o: &L2Norm) -> Prepared<'a> {
    Prepared::new(L2_NORM, grid, vec![step.at(&o.x), step.at(&o.out)])
        .arguments(Arguments::of(&[o.x.cols, o.out.cols, o.dim]))
}

pub fn gated_rms_norm<'a>(step: &Step<'a>, grid: Grid, o: &GatedRmsNorm) -> Prepared<'a> {
    let buffers = vec![step.at(&o.y), step.at(&o.z), step.at(&o.weight), step.at(&o.out)];
    Prepared::new(GATED_RMS_NORM, grid, buffers).arguments(Arguments::of(&[o.out.cols, o.weight.cols]).float(o.eps))
}

pub fn router_top_k<'a>(step: &Step<'a>, grid: Grid, o: &RouterTopK) -> Prepared<'a> {
    let buffers = vec![step.at(&o.logits), step.at(&o.experts), step.at(&o.weights)];
    Prepared::new(ROUTER_TOP_K, grid, buffers).arguments(Arguments::of(&[o.logits.cols, o.experts.cols]))
}

pub fn group_rows<'a>(step: &Step<'a>, grid: Grid, o: &GroupRows) -> Prepared<'a> {
    let experts = o.groups.experts();
    let buffers = vec![step.at(&o.experts), step.at(&o.groups.offsets), step.at(&o.groups.order)];
    Prepared::new(GROUP_ROWS, grid, buffers).arguments(Arguments::of(&[step.tokens() * o.groups.top_k(), experts]))
}
