//! The Gated DeltaNet: convolution and recurrence of one sequence.

use super::{Abilities, Grid, SIMD};
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

/// Keys that `gated_delta_chunks` is written for, and rows of the state of its threadgroups and simdgroups (`PART`).
const CHUNK_DIMS: [(usize, &str); 2] = [(64, "gated_delta_chunks64"), (128, "gated_delta_chunks128")];
const CHUNK_PART: usize = 32;
const CHUNK_ROWS: usize = 8;

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

/// Token by token: rows of a state need nothing of each other, so small threadgroups, and many. Then, where heads fit, the
/// matrix form of whole chunks, which is never chosen: no Mac has measured it.
pub fn gated_delta(o: &GatedDelta, switches: Switches, gpu: Abilities) -> Vec<Grid> {
    let parts = o.v_dim().div_ceil(STATE_ROWS * SCAN_SIMDGROUPS);
    let tokens = Grid::new(scan(switches), [o.v_heads(), parts], SCAN_SIMDGROUPS * SIMD);
    let fits = |(dim, _): &&(usize, &str)| gpu.matrices && *dim == o.k_dim() && o.v_dim().is_multiple_of(CHUNK_PART);
    let chunks = CHUNK_DIMS
        .iter()
        .find(fits)
        .map(|(_, kernel)| Grid::new(kernel, [o.v_heads(), o.v_dim() / CHUNK_PART], CHUNK_PART / CHUNK_ROWS * SIMD));
    std::iter::once(tokens).chain(chunks).collect()
}

/// The norm needs a head's whole output.
pub fn gated_delta_norm(o: &GatedDelta, switches: Switches) -> Grid {
    Grid::new(scan(switches), [o.v_heads(), 1], o.v_dim().div_ceil(STATE_ROWS) * SIMD)
}

pub fn gated_delta_step(o: &GatedDeltaStep) -> Grid {
    Grid::new("gated_delta_step", [o.delta.v_heads(), o.parts()], PART / STATE_ROWS * SIMD)
}
