//! The Gated DeltaNet: convolution and recurrence of one sequence.

use super::{Grid, SIMD};
use crate::op::Counts;
use crate::ops::conv1d_silu::Conv1dSilu;
use crate::ops::gated_delta::GatedDelta;
use crate::ops::gated_delta_step::{GatedDeltaStep, PART};

/// Rows of the state in a simdgroup's registers.
const STATE_ROWS: usize = 4;

/// Rows of each sequence: those of one prefill, or one token each.
const fn rows(c: &Counts) -> usize {
    if c.sequences == 0 { 0 } else { c.tokens / c.sequences }
}

pub fn conv1d_silu(o: &Conv1dSilu, c: &Counts) -> Grid {
    Grid::elements("conv1d_silu", o.x.cols, rows(c) + o.weight.rows - 1)
}

pub fn gated_delta(o: &GatedDelta) -> Grid {
    Grid::new("gated_delta", [o.v_heads(), 1], o.v_dim().div_ceil(STATE_ROWS) * SIMD)
}

pub fn gated_delta_step(o: &GatedDeltaStep) -> Grid {
    Grid::new("gated_delta_step", [o.delta.v_heads(), o.parts()], PART / STATE_ROWS * SIMD)
}
