//! What a dispatch becomes on a GPU: which kernel, how many threadgroups of how many threads. Decided from the op, the
//! step's sizes, the switches and what the GPU can do, so that a plan can be described without a device. Knows no buffer.

mod attention; // the cache, rotation, attention
mod delta; // the recurrence and what leads to it
mod matmul; // weights, dense and of experts
mod rows; // norms, routing, elements
mod sample; // the next token

pub use attention::{MERGED_ELEMENTS, shared_heads, tile_heads};
pub use matmul::{first_groups, lanes, x_rows};
pub use sample::{block_count, choose};

use crate::op::{Counts, Op};
use crate::switches::Switches;

/// Threads of a simdgroup on every Apple GPU.
pub const SIMD: usize = 32;
/// Threads of a threadgroup whose threads take an element each.
const ELEMENT_THREADS: usize = 256;

/// What of a GPU decides which kernels run on it. A device finds it out; plans are described for the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abilities {
    /// Matrices of a simdgroup: every Apple GPU from M1 on.
    pub matrices: bool,
    /// Tensors of bfloat, and units that multiply them: from M5 on.
    pub tensors: bool,
}

impl Default for Abilities {
    fn default() -> Self {
        Self { matrices: true, tensors: false }
    }
}

/// One kernel's grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Its name.
    pub kernel: &'static str,
    /// Threadgroups.
    pub groups: [usize; 2],
    /// Threads of each.
    pub threads: usize,
}

impl Grid {
    const fn new(kernel: &'static str, groups: [usize; 2], threads: usize) -> Self {
        Self { kernel, groups, threads }
    }

    /// A thread for each element.
    const fn elements(kernel: &'static str, cols: usize, rows: usize) -> Self {
        Self::new(kernel, [cols.div_ceil(ELEMENT_THREADS), rows], ELEMENT_THREADS)
    }
}

/// Every legal grid of a dispatch, the policy's choice first.
pub fn variants(op: &Op, c: &Counts, switches: Switches, gpu: Abilities) -> Vec<Grid> {
    if let Op::Linear(o) = op {
        matmul::linear(o, c, gpu)
    } else if let Op::ExpertLinear(o) = op {
        matmul::expert_linear(o, c, switches, gpu)
    } else if let Op::ExpertGateUp(o) = op {
        matmul::expert_gate_up(o, c, switches, gpu)
    } else if let Op::Attention(o) = op {
        attention::attention(o, c, switches, gpu)
    } else if let Op::GatedDelta(o) = op {
        delta::gated_delta(o, switches, gpu)
    } else {
        vec![grid(op, c, switches, gpu)]
    }
}

/// The grid of a dispatch in a step of these sizes. What has a state is launched once for each sequence, each with this
/// grid.
pub fn grid(op: &Op, c: &Counts, switches: Switches, gpu: Abilities) -> Grid {
    match op {
        Op::Embed(o) => Grid::elements("embed", o.table.cols, c.tokens),
        Op::Linear(o) => matmul::linear(o, c, gpu)[0],
        Op::ExpertLinear(o) => matmul::expert_linear(o, c, switches, gpu)[0],
        Op::ExpertGateUp(o) => matmul::expert_gate_up(o, c, switches, gpu)[0],
        Op::RmsNorm(o) => rows::rms_norm(o, c),
        Op::L2Norm(o) => Grid::new("l2_norm", [o.out.cols / o.dim, c.tokens], SIMD),
        Op::GatedRmsNorm(o) => Grid::new("gated_rms_norm", [o.out.cols / o.weight.cols, c.tokens], SIMD),
        Op::RouterTopK(_) => Grid::new("router_top_k", [1, c.tokens], SIMD),
        Op::GroupRows(o) => rows::group_rows(o),
        Op::Rope(o) => Grid::elements("rope", o.x.cols, c.tokens),
        Op::KvWrite(o) => Grid::elements("kv_write", o.k.cols, c.tokens),
        Op::QkNormRopeWrite(o) => attention::qk_norm_rope_write(o, c),
        Op::Attention(o) => attention::attention(o, c, switches, gpu)[0],
        Op::Conv1dSilu(o) => delta::conv1d_silu(o, c),
        Op::GatedDelta(o) => delta::gated_delta(o, switches, gpu)[0],
        Op::GatedDeltaNorm(o) => delta::gated_delta_norm(&o.delta, switches),
        Op::GdnGates(o) => Grid::elements("gdn_gates", o.a.cols, c.tokens),
        Op::SigmoidGate(o) => Grid::elements("sigmoid_gate", o.x.cols, c.tokens),
        Op::SplitHeads(o) => Grid::elements("split_heads", o.out.cols, c.tokens),
        Op::SwiGlu(o) => Grid::elements("swiglu", o.out.cols, c.tokens * o.per_token),
        Op::CombineExperts(o) => Grid::elements("combine_experts", o.out.cols, c.tokens),
        Op::SharedExpertAdd(o) => Grid::elements("shared_expert_add", o.out.cols, c.tokens),
        Op::Add(o) => Grid::elements("add", o.out.cols, c.tokens),
        Op::MoeOutput(o) => Grid::elements("moe_output", o.add.out.cols, c.tokens),
        Op::GatherRows(o) => Grid::elements("gather_rows", o.x.cols, c.outputs),
        Op::ExpandWeights(o) => matmul::expand_weights(o),
        Op::NormLinears(o) => matmul::norm_linears(o, c),
        Op::LinearAdd(o) => matmul::linear_add(o, c),
        Op::GatedDeltaStep(o) => delta::gated_delta_step(o),
        Op::MoeGateUp(o) => matmul::moe_gate_up(o, c),
        Op::MoeDown(o) => matmul::moe_down(o),
        Op::AttentionParts(o) => attention::attention_parts(o, c, switches),
        Op::AttentionMerge(o) => attention::attention_merge(o, c),
        Op::Sample(o) => sample::blocks(o, c),
        Op::QuantizeRows(_) => Grid::new(op.kind().name(), [0, 0], SIMD),
    }
}
