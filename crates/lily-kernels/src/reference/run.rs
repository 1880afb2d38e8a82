//! Runs a plan, one dispatch after another, and reports what each one touched.

use super::memory::Memory;
use crate::inputs::StepInputs;
use crate::op::{Cost, Counts, Op, OpKind};
use crate::ops;
use crate::ops::attention_merge::AttentionMerge;
use crate::ops::attention_parts::{AttentionParts, Cut};
use crate::ops::group_rows::Groups;
use crate::plan::Plan;
use crate::tensor::{DType, Space, Tensor};

/// What a dispatch did to memory, and what its contract says it does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DispatchTouch {
    /// Kind of op.
    pub op: OpKind,
    /// Place in the model.
    pub scope: String,
    /// Distinct bytes read.
    pub read: usize,
    /// Distinct bytes written.
    pub written: usize,
    /// The contract's cost of a step of these sizes.
    pub declared: Cost,
}

impl DispatchTouch {
    /// Whether the contract's bytes are the bytes really touched. A KV block that several sequences of a step share is
    /// declared once per sequence, and touched once.
    pub const fn agrees(&self) -> bool {
        self.read == self.declared.read && self.written == self.declared.written
    }
}

/// Runs a step. Panics on an access that the op did not declare or that reads what nothing has written.
pub fn run_plan(plan: &Plan, mem: &mut Memory, inputs: &StepInputs) -> Vec<DispatchTouch> {
    run_observed(plan, mem, inputs, &mut |_, _, _| ())
}

/// As `run_plan`; calls `after` with index, op and memory after each dispatch.
pub fn run_observed(
    plan: &Plan,
    mem: &mut Memory,
    inputs: &StepInputs,
    after: &mut dyn FnMut(usize, &Op, &Memory),
) -> Vec<DispatchTouch> {
    mem.prepare(plan);
    mem.begin_step(inputs);
    let distinct_tokens = distinct_tokens(plan, mem, inputs);
    let mut touches = Vec::with_capacity(plan.dispatches.len());
    for (index, dispatch) in plan.dispatches.iter().enumerate() {
        let op = &dispatch.op;
        mem.begin_op(op);
        run_op(op, mem, inputs);
        let (read, written) = mem.end_op();
        let experts_hit = experts_hit(mem, op, inputs);
        let cut_spans = cut(op).map_or(0, |cut| inputs.lengths().map(|length| cut.spans(length)).sum());
        let counts = Counts { distinct_tokens, cut_spans, ..inputs.counts(experts_hit) };
        let declared = op.contract().cost(&counts);
        touches.push(DispatchTouch { op: op.kind(), scope: dispatch.scope.clone(), read, written, declared });
        after(index, op, mem);
    }
    mem.end_step();
    touches
}

/// Distinct ids of the step, which may lie in a token slot.
fn distinct_tokens(plan: &Plan, mem: &Memory, inputs: &StepInputs) -> usize {
    if !plan.dispatches.iter().any(|d| d.op.kind() == OpKind::Embed) {
        return 0;
    }
    let rows = inputs.num_tokens();
    let tokens = Tensor { space: Space::Tokens, offset: 0, rows, cols: 1, dtype: DType::U32 };
    let mut ids = mem.look_ids(&tokens, rows);
    ids.sort_unstable();
    ids.dedup();
    ids.len()
}

/// Where an op finds the routing that it follows; its cost depends on it.
enum Routing<'a> {
    /// Pairs sorted by expert.
    Groups(&'a Groups),
    /// Experts as the router chose them.
    Chosen(&'a Tensor),
    /// Nowhere.
    None,
}

/// Experts with at least one row.
fn experts_hit(mem: &Memory, op: &Op, inputs: &StepInputs) -> usize {
    match routing(op) {
        Routing::Groups(groups) => mem.look_ids(&groups.offsets, 1).windows(2).filter(|o| o[0] < o[1]).count(),
        Routing::Chosen(experts) => {
            let mut ids = mem.look_ids(experts, inputs.num_tokens());
            ids.sort_unstable();
            ids.dedup();
            ids.len()
        }
        Routing::None => 0,
    }
}

const fn routing(op: &Op) -> Routing<'_> {
    match op {
        Op::ExpertLinear(o) => Routing::Groups(&o.groups),
        Op::ExpertGateUp(o) => Routing::Groups(&o.gate.groups),
        Op::MoeGateUp(o) => Routing::Chosen(&o.experts),
        Op::MoeDown(o) => Routing::Chosen(&o.experts),
        Op::Embed(_)
        | Op::RmsNorm(_)
        | Op::QuantizeRows(_)
        | Op::ExpandWeights(_)
        | Op::Linear(_)
        | Op::Rope(_)
        | Op::KvWrite(_)
        | Op::QkNormRopeWrite(_)
        | Op::Attention(_)
        | Op::SigmoidGate(_)
        | Op::SplitHeads(_)
        | Op::Conv1dSilu(_)
        | Op::GdnGates(_)
        | Op::L2Norm(_)
        | Op::GatedDelta(_)
        | Op::GatedRmsNorm(_)
        | Op::GatedDeltaNorm(_)
        | Op::RouterTopK(_)
        | Op::GroupRows(_)
        | Op::SwiGlu(_)
        | Op::CombineExperts(_)
        | Op::SharedExpertAdd(_)
        | Op::Add(_)
        | Op::MoeOutput(_)
        | Op::GatherRows(_)
        | Op::NormLinears(_)
        | Op::LinearAdd(_)
        | Op::GatedDeltaStep(_)
        | Op::AttentionParts(_)
        | Op::AttentionMerge(_)
        | Op::Sample(_) => Routing::None,
    }
}

/// How an op cuts the cache, if it does.
const fn cut(op: &Op) -> Option<Cut> {
    if let Op::AttentionParts(AttentionParts { cut, .. })
    | Op::AttentionMerge(AttentionMerge { of: AttentionParts { cut, .. }, .. }) = op
    {
        Some(*cut)
    } else {
        None
    }
}

/// Runs one op.
fn run_op(op: &Op, mem: &mut Memory, inputs: &StepInputs) {
    match op {
        Op::Embed(o) => ops::embed::reference::run(o, mem, inputs),
        Op::RmsNorm(o) => ops::rms_norm::reference::run(o, mem, inputs),
        Op::QuantizeRows(o) => ops::quantize_rows::reference::run(o, mem, inputs),
        Op::Linear(o) => ops::linear::reference::run(o, mem, inputs),
        Op::Rope(o) => ops::rope::reference::run(o, mem, inputs),
        Op::KvWrite(o) => ops::kv_write::reference::run(o, mem, inputs),
        Op::QkNormRopeWrite(o) => ops::qk_norm_rope_write::reference::run(o, mem, inputs),
        Op::Attention(o) => ops::attention::reference::run(o, mem, inputs),
        Op::SigmoidGate(o) => ops::sigmoid_gate::reference::run(o, mem, inputs),
        Op::SplitHeads(o) => ops::split_heads::reference::run(o, mem, inputs),
        Op::Conv1dSilu(o) => ops::conv1d_silu::reference::run(o, mem, inputs),
        Op::GdnGates(o) => ops::gdn_gates::reference::run(o, mem, inputs),
        Op::L2Norm(o) => ops::l2_norm::reference::run(o, mem, inputs),
        Op::GatedDelta(o) => ops::gated_delta::reference::run(o, mem, inputs),
        Op::GatedRmsNorm(o) => ops::gated_rms_norm::reference::run(o, mem, inputs),
        Op::GatedDeltaNorm(o) => ops::gated_delta_norm::reference::run(o, mem, inputs),
        Op::RouterTopK(o) => ops::router_top_k::reference::run(o, mem, inputs),
        Op::GroupRows(o) => ops::group_rows::reference::run(o, mem, inputs),
        Op::ExpandWeights(o) => ops::expand_weights::reference::run(o, mem),
        Op::ExpertLinear(o) => ops::expert_linear::reference::run(o, mem, inputs),
        Op::SwiGlu(o) => ops::swiglu::reference::run(o, mem, inputs),
        Op::ExpertGateUp(o) => ops::expert_gate_up::reference::run(o, mem, inputs),
        Op::CombineExperts(o) => ops::combine_experts::reference::run(o, mem, inputs),
        Op::SharedExpertAdd(o) => ops::shared_expert_add::reference::run(o, mem, inputs),
        Op::Add(o) => ops::add::reference::run(o, mem, inputs),
        Op::MoeOutput(o) => ops::moe_output::reference::run(o, mem, inputs),
        Op::GatherRows(o) => ops::gather_rows::reference::run(o, mem, inputs),
        Op::NormLinears(o) => ops::norm_linears::reference::run(o, mem, inputs),
        Op::LinearAdd(o) => ops::linear_add::reference::run(o, mem, inputs),
        Op::GatedDeltaStep(o) => ops::gated_delta_step::reference::run(o, mem, inputs),
        Op::MoeGateUp(o) => ops::moe_gate_up::reference::run(o, mem, inputs),
        Op::MoeDown(o) => ops::moe_down::reference::run(o, mem, inputs),
        Op::AttentionParts(o) => ops::attention_parts::reference::run(o, mem, inputs),
        Op::AttentionMerge(o) => ops::attention_merge::reference::run(o, mem, inputs),
        Op::Sample(o) => ops::sample::reference::run(o, mem, inputs),
    }
}
