//! The Gated DeltaNet: convolution and recurrence of one sequence.

use super::{Grid, SIMD};
use crate::devices::DeviceKind;
use crate::op::Counts;
use crate::ops::conv1d_silu::Conv1dSilu;
use crate::ops::gated_delta::GatedDelta;
use crate::ops::gated_delta_step::{GatedDeltaStep, PART};
use crate::switches::Switches;

/// Rows of the state in a simdgroup's registers.
const STATE_ROWS: usize = 4;

/// Simdgroups of a threadgroup of the scan.
const SCAN_SIMDGROUPS: usize = 4;

/// Rows of each sequence: those of one prefill, or one token each.
fn rows(c: &Counts) -> usize {
    c.tokens.checked_div(c.sequences).unwrap_or(0)
}

pub fn conv1d_silu(o: &Conv1dSilu, c: &Counts) -> Grid {
    Grid::elements("conv1d_silu", o.x.cols, rows(c) + o.weight.rows - 1)
}

fn scan(switches: Switches) -> &'static str {
    if switches.is_on("gdn-registers", DeviceKind::Metal) { "gated_delta" } else { "gated_delta_blocks" }
}

/// Rows of a state need nothing of each other: small threadgroups, and many.
pub fn gated_delta(o: &GatedDelta, switches: Switches) -> Grid {
    let parts = o.v_dim().div_ceil(STATE_ROWS * SCAN_SIMDGROUPS);
    Grid::new(scan(switches), [o.v_heads(), parts], SCAN_SIMDGROUPS * SIMD)
}

/// The norm needs a head's whole output.
pub fn gated_delta_norm(o: &GatedDelta, switches: Switches) -> Grid {
    Grid::new(scan(switches), [o.v_heads(), 1], o.v_dim().div_ceil(STATE_ROWS) * SIMD)
}

pub fn gated_delta_step(o: &GatedDeltaStep) -> Grid {
    Grid::new("gated_delta_step", [o.delta.v_heads(), o.parts()], PART / STATE_ROWS * SIMD)
}
