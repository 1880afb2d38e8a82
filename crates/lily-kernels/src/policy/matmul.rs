//! Ops with weights. Rows read a weight once each, tiles once for all their rows.

use super::{Abilities, Grid, SIMD};
use crate::devices::DeviceKind;
use crate::op::Counts;
use crate::ops::expand_weights::ExpandWeights;
use crate::ops::expert_gate_up::ExpertGateUp;
use crate::ops::expert_linear::ExpertLinear;
use crate::ops::group_rows::Groups;
use crate::ops::linear::Linear;
use crate::ops::linear_add::LinearAdd;
use crate::ops::moe_down::MoeDown;
use crate::ops::moe_gate_up::MoeGateUp;
use crate::ops::norm_linears::NormLinears;
use crate::switches::Switches;
use crate::tensor::Matrix;

/// Simdgroups of a threadgroup.
const SIMDGROUPS: usize = 2;
/// Outputs of a set of lanes (`ROWS` in `matmul.metal`), and the inputs that a lane takes at a time (`SPAN`).
const OUTPUTS: usize = 4;
const SPAN: usize = 32;
/// Activation rows that share a load of the weights, at most (`MOST_X_ROWS`).
const X_ROWS: usize = 4;

/// Outputs of a tile (`TILE_OUTPUTS` in `tile.metal`), and its simdgroups.
const TILE_OUTPUTS: usize = 64;
const TILE_SIMDGROUPS: usize = 4;

/// Rows of a tile of tensor operations (`TENSOR_ROWS` in `linear_tensor.metal`), and from how many rows on it is chosen.
/// Reckoned; no Mac has measured it.
const TENSOR_ROWS: usize = 32;
const TENSORS_FROM: usize = 17;

/// How a matmul takes its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Body {
    /// One at a time.
    Rows,
    /// 16 at a time.
    Tile16,
    /// 32 at a time.
    Tile32,
}

/// Every body; each is legal for any shape, tiles where the GPU has matrices.
const BODIES: [Body; 3] = [Body::Rows, Body::Tile16, Body::Tile32];

impl Body {
    const fn rows(self) -> usize {
        match self {
            Self::Rows => 1,
            Self::Tile16 => 16,
            Self::Tile32 => 32,
        }
    }
}

/// First match: from so many rows on. Reckoned; no Mac has measured it.
const DENSE: [(usize, Body); 3] = [(17, Body::Tile32), (8, Body::Tile16), (0, Body::Rows)];

/// First match: from so many tokens and so many pairs of an expert on average on. The article measured 16 and 32 rows at
/// 64 pairs an expert: 32 were 13 % faster. The rest is reckoned: from two rows on pairs may share an expert, which a tile
/// reads once and rows once a pair; no Mac has measured it.
const EXPERTS: [(usize, usize, Body); 3] = [(8, 24, Body::Tile32), (2, 0, Body::Tile16), (0, 0, Body::Rows)];

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

fn tiles(kernel: &'static str, outputs: usize, blocks: usize) -> Grid {
    Grid::new(kernel, [outputs.div_ceil(TILE_OUTPUTS), blocks], TILE_SIMDGROUPS * SIMD)
}

fn dense(body: Body, rows: usize, o: &Linear) -> Grid {
    let (outputs, blocks) = (o.weight.rows, rows.div_ceil(body.rows()));
    match body {
        Body::Rows => over("linear_rows", &o.weight, rows.div_ceil(x_rows(rows))),
        Body::Tile16 => tiles("linear_tile16", outputs, blocks),
        Body::Tile32 => tiles("linear_tile32", outputs, blocks),
    }
}

/// The policy's grid first, then the other legal ones.
pub fn linear(o: &Linear, c: &Counts, gpu: Abilities) -> Vec<Grid> {
    let rows = c.rows(o.rows);
    let best = DENSE.iter().find(|(from, _)| rows >= *from).map_or(Body::Rows, |(_, body)| *body);
    let mut grids = best_first(best, gpu, |body| dense(body, rows, o));
    if gpu.tensors {
        let is_best = o.may_round && rows >= TENSORS_FROM;
        let place = if is_best { 0 } else { grids.len() };
        grids.insert(place, tiles("linear_tensor", o.weight.rows, rows.div_ceil(TENSOR_ROWS)));
    }
    grids
}

/// Without matrices, rows are the only body, however many there are.
fn best_first(best: Body, gpu: Abilities, grid: impl Fn(Body) -> Grid) -> Vec<Grid> {
    let mut bodies = BODIES;
    bodies.sort_by_key(|body| *body != best);
    bodies.into_iter().filter(|body| gpu.matrices || *body == Body::Rows).map(grid).collect()
}

const fn pairs(groups: &Groups, c: &Counts) -> usize {
    c.tokens * groups.top_k()
}

fn grouped(
    groups: &Groups,
    c: &Counts,
    (switches, gpu): (Switches, Abilities),
    grid: impl Fn(Body, usize) -> Grid,
) -> Vec<Grid> {
    let (pairs, experts) = (pairs(groups, c), groups.experts());
    let fits = |(tokens, load, _): &&(usize, usize, Body)| c.tokens >= *tokens && pairs >= load * experts;
    let best = match EXPERTS.iter().find(fits).map_or(Body::Rows, |(_, _, body)| *body) {
        Body::Tile32 if !switches.is_on("expert-tile", DeviceKind::Metal) => Body::Tile16,
        best @ (Body::Rows | Body::Tile16 | Body::Tile32) => best,
    };
    // Blocks of one expert each, of which the last may be part-filled. The routing is not known here: so many at most.
    let blocks = |body: Body| pairs.min(pairs / body.rows() + experts);
    best_first(best, gpu, |body| grid(body, blocks(body)))
}

pub fn expert_linear(o: &ExpertLinear, c: &Counts, switches: Switches, gpu: Abilities) -> Vec<Grid> {
    grouped(&o.groups, c, (switches, gpu), |body, blocks| match body {
        Body::Rows => over("expert_linear_rows", &o.weight, blocks),
        Body::Tile16 => tiles("expert_linear_tile16", o.weight.rows, blocks),
        Body::Tile32 => tiles("expert_linear_tile32", o.weight.rows, blocks),
    })
}

pub fn expert_gate_up(o: &ExpertGateUp, c: &Counts, switches: Switches, gpu: Abilities) -> Vec<Grid> {
    grouped(&o.gate.groups, c, (switches, gpu), |body, blocks| match body {
        Body::Rows => over("expert_gate_up_rows", &o.gate.weight, blocks),
        Body::Tile16 => tiles("expert_gate_up_tile16", o.gate.weight.rows, blocks),
        Body::Tile32 => tiles("expert_gate_up_tile32", o.gate.weight.rows, blocks),
    })
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

/// A thread for each span of inputs.
pub fn expand_weights(o: &ExpandWeights) -> Grid {
    Grid::new("expand_weights", [o.out.cols.div_ceil(SPAN * 2 * SIMD), o.out.rows], 2 * SIMD)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::{DType, Space, Tensor};

    fn chosen(tokens: usize, switches: Switches) -> (usize, usize) {
        let tensor = |rows, cols| Tensor { space: Space::Arena, offset: 0, rows, cols, dtype: DType::U32 };
        let groups = Groups { offsets: tensor(1, 257), order: tensor(tokens, 8) };
        let counts = Counts { tokens, ..Counts::default() };
        let on = (switches, Abilities::default());
        let grids = grouped(&groups, &counts, on, |body, blocks| Grid::new("", [body.rows(), blocks], 0));
        (grids[0].groups[0], grids[0].groups[1])
    }

    #[test]
    fn tiles_of_experts_follow_their_load() {
        let all = Switches::default();
        assert_eq!(chosen(1, all), (1, 8));
        for tokens in 2..9 {
            assert_eq!(chosen(tokens, all), (16, 8 * tokens), "an expert is read once, not once a pair");
        }
        assert_eq!(chosen(512, all), (16, 512));
        assert_eq!(chosen(2048, all), (32, 768));
        assert_eq!(chosen(2048, all.without("expert-tile").unwrap()), (16, 1280));
    }
}
