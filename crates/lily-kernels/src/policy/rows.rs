//! Norms and routing: ops that look at whole rows.

use super::{Grid, SIMD};
use crate::op::Counts;
use crate::ops::group_rows::GroupRows;
use crate::ops::rms_norm::RmsNorm;

/// Most threads of a threadgroup that shares one task.
const ROW_THREADS: usize = 256;

pub fn rms_norm(o: &RmsNorm, c: &Counts) -> Grid {
    Grid::new("rms_norm", [o.heads, c.rows(o.rows)], o.dim().next_multiple_of(SIMD).min(ROW_THREADS))
}

pub fn group_rows(o: &GroupRows) -> Grid {
    Grid::new("group_rows", [1, 1], o.groups.experts().next_multiple_of(SIMD).min(ROW_THREADS))
}
