//! Ops with weights.

use super::{Grid, SIMD};
use crate::op::Counts;
use crate::ops::expert_gate_up::ExpertGateUp;
use crate::ops::expert_linear::ExpertLinear;
use crate::ops::group_rows::Groups;
use crate::ops::linear::Linear;
use crate::ops::linear_add::LinearAdd;
use crate::ops::moe_down::MoeDown;
use crate::ops::moe_gate_up::MoeGateUp;
use crate::ops::norm_linears::NormLinears;
use crate::tensor::Matrix;

/// Simdgroups of a threadgroup.
const SIMDGROUPS: usize = 2;
/// Outputs of a set of lanes (`ROWS` in `matmul.metal`), and the inputs that a lane takes at a time (`SPAN`).
const OUTPUTS: usize = 4;
const SPAN: usize = 32;
/// Activation rows that share a load of the weights, at most (`MOST_X_ROWS`).
const X_ROWS: usize = 4;

/// Rows and outputs of a tile (`TILE` in `tile.metal`), and its simdgroups.
const TILE: usize = 32;
const TILE_SIMDGROUPS: usize = 4;
/// From so many rows on, tiles: they read a weight once, rows read it once each. Reckoned; no Mac has measured it.
const TILE_FROM: usize = 8;

/// Lanes that work on one row of a matrix: fewer than a simdgroup has where the row has fewer runs of inputs.
pub fn lanes(inputs: usize) -> usize {
    inputs.div_ceil(SPAN).next_power_of_two().min(SIMD)
}

/// Activation rows that share a load of the weights.
pub fn x_rows(rows: usize) -> usize {
    rows.clamp(1, X_ROWS)
}

/// A set of lanes for every four outputs.
pub fn output_groups(outputs: usize, inputs: usize) -> usize {
    outputs.div_ceil(SIMDGROUPS * OUTPUTS * (SIMD / lanes(inputs)))
}

fn over(kernel: &'static str, weight: &Matrix, rows: usize) -> Grid {
    Grid::new(kernel, [output_groups(weight.rows, weight.cols), rows], SIMDGROUPS * SIMD)
}

pub fn linear(o: &Linear, c: &Counts) -> Grid {
    let (rows, outputs) = (c.rows(o.rows), o.weight.rows);
    if rows >= TILE_FROM {
        Grid::new("linear_tile", [outputs.div_ceil(TILE), rows.div_ceil(TILE)], TILE_SIMDGROUPS * SIMD)
    } else {
        over("linear_rows", &o.weight, rows.div_ceil(x_rows(rows)))
    }
}

const fn pairs(groups: &Groups, c: &Counts) -> usize {
    c.tokens * groups.top_k()
}

pub fn expert_linear(o: &ExpertLinear, c: &Counts) -> Grid {
    over("expert_linear_rows", &o.weight, pairs(&o.groups, c))
}

pub fn expert_gate_up(o: &ExpertGateUp, c: &Counts) -> Grid {
    over("expert_gate_up_rows", &o.gate.weight, pairs(&o.gate.groups, c))
}

/// Of each projection, the threadgroups of those before it; then of all.
pub fn first_groups(o: &NormLinears) -> Vec<usize> {
    let groups = |l: &Linear| output_groups(l.weight.rows, l.weight.cols);
    let ends = o.linears.iter().scan(0, |end, l| {
        *end += groups(l);
        Some(*end)
    });
    std::iter::once(0).chain(ends).collect()
}

pub fn norm_linears(o: &NormLinears, c: &Counts) -> Grid {
    let rows = c.rows(o.norm.rows);
    let groups = first_groups(o).last().copied().unwrap_or(0);
    Grid::new("norm_linears", [groups, rows.div_ceil(x_rows(rows))], SIMDGROUPS * SIMD)
}

pub fn linear_add(o: &LinearAdd, c: &Counts) -> Grid {
    over("linear_add_rows", &o.linear.weight, c.tokens.div_ceil(x_rows(c.tokens)))
}

pub fn moe_gate_up(o: &MoeGateUp, c: &Counts) -> Grid {
    let wider = if o.gate.weight.rows > o.routed.gate.weight.rows { &o.gate.weight } else { &o.routed.gate.weight };
    // The shared expert comes after the pairs.
    over("moe_gate_up_rows", wider, c.tokens * o.experts.cols + 1)
}

pub fn moe_down(o: &MoeDown) -> Grid {
    over("moe_down_rows", &o.routed.weight, 1)
}
