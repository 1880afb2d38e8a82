//! Ops with weights.

use super::{Grid, SIMD};
use crate::op::Counts;
use crate::ops::expert_gate_up::ExpertGateUp;
use crate::ops::expert_linear::ExpertLinear;
use crate::ops::group_rows::Groups;
use crate::ops::linear::Linear;

/// Simdgroups of a threadgroup, and outputs of each (`ROWS` in `matmul.metal`).
const SIMDGROUPS: usize = 2;
const OUTPUTS: usize = 4;

/// Rows and outputs of a tile (`TILE` in `tile.metal`), and its simdgroups.
const TILE: usize = 32;
const TILE_SIMDGROUPS: usize = 4;
/// From so many rows on, tiles: they read a weight once, rows read it once each. Reckoned; no Mac has measured it.
const TILE_FROM: usize = 8;

/// A simdgroup for every four outputs of a row.
fn over(kernel: &'static str, outputs: usize, rows: usize) -> Grid {
    Grid::new(kernel, [outputs.div_ceil(SIMDGROUPS * OUTPUTS), rows], SIMDGROUPS * SIMD)
}

pub fn linear(o: &Linear, c: &Counts) -> Grid {
    let (rows, outputs) = (c.rows(o.rows), o.weight.rows);
    if rows >= TILE_FROM {
        Grid::new("linear_tile", [outputs.div_ceil(TILE), rows.div_ceil(TILE)], TILE_SIMDGROUPS * SIMD)
    } else {
        over("linear_rows", outputs, rows)
    }
}

const fn pairs(groups: &Groups, c: &Counts) -> usize {
    c.tokens * groups.top_k()
}

pub fn expert_linear(o: &ExpertLinear, c: &Counts) -> Grid {
    over("expert_linear_rows", o.weight.rows, pairs(&o.groups, c))
}

pub fn expert_gate_up(o: &ExpertGateUp, c: &Counts) -> Grid {
    over("expert_gate_up_rows", o.gate.weight.rows, pairs(&o.gate.groups, c))
}
