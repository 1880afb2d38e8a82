//! Op → launches. What a kernel is told stands here beside its binding; what it computes, in its file.

mod attention; // the cache, rotation, attention
mod delta; // the recurrence and what leads to it
mod elementwise; // one thread an element
mod fused; // several ops with weights as one
mod matmul; // weights, dense and of experts
mod rows; // norms, routing
pub mod sample; // the next token
pub mod sources; // which files make a library

use super::device::{Launch, Place, Source};
use super::step::Step;
use crate::op::Op;
use crate::policy::{self, Grid};
use crate::tensor::DType;

/// A launch, with what it lends to `Launch`.
pub struct Prepared<'a> {
    source: Source,
    grid: Grid,
    constants: Vec<u32>,
    buffers: Vec<Place<'a>>,
    arguments: Vec<Vec<u8>>,
    /// Which launches of its op it follows: those with a lower number.
    pub turn: usize,
}

impl<'a> Prepared<'a> {
    fn new(source: Source, grid: Grid, buffers: Vec<Place<'a>>) -> Self {
        Self { source, grid, constants: Vec::new(), buffers, arguments: Vec::new(), turn: 0 }
    }

    /// Values of the function constants.
    fn constants(mut self, constants: &[u32]) -> Self {
        self.constants = constants.to_vec();
        self
    }

    /// One more struct of arguments.
    fn arguments(mut self, arguments: Arguments) -> Self {
        self.arguments.push(arguments.0);
        self
    }

    /// After the launches of its op that have a lower turn.
    fn after(mut self, turn: usize) -> Self {
        self.turn = turn + 1;
        self
    }

    /// As the device takes it.
    pub fn launch(&'a self) -> Launch<'a> {
        Launch {
            source: self.source,
            kernel: self.grid.kernel,
            constants: &self.constants,
            buffers: &self.buffers,
            arguments: &self.arguments,
            groups: self.grid.groups,
            threads: self.grid.threads,
        }
    }
}

/// A struct of `uint`s and `float`s, in the kernel's order.
#[derive(Default)]
struct Arguments(Vec<u8>);

impl Arguments {
    fn of(counts: &[usize]) -> Self {
        Self::default().counts(counts)
    }

    fn count(mut self, count: usize) -> Self {
        let count = u32::try_from(count).expect("kernels count in 32 bits");
        self.0.extend(count.to_le_bytes());
        self
    }

    fn counts(self, counts: &[usize]) -> Self {
        counts.iter().fold(self, |all, count| all.count(*count))
    }

    fn float(mut self, value: f32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }
}

/// How kernels name an element type (`prelude.metal`).
fn type_code(dtype: DType) -> u32 {
    match dtype {
        DType::F32 => 0,
        DType::Bf16 => 1,
        DType::F16 => 2,
        DType::U32 | DType::I32 | DType::I8 | DType::U8 => panic!("kernels compute with no {dtype:?}"),
    }
}

/// Why an op cannot run here.
pub fn unsupported(op: &Op) -> Option<String> {
    match op {
        Op::QuantizeRows(_) => Some("it computes with f32 activations, not with int8 ones".into()),
        Op::Linear(o) => matmul::unsupported(&o.x),
        Op::ExpertLinear(o) => matmul::unsupported(&o.x),
        Op::ExpertGateUp(o) => matmul::unsupported(&o.gate.x),
        Op::Attention(o) => attention::unsupported(o),
        Op::GatedDelta(o) => delta::unsupported(o),
        Op::GatedDeltaNorm(o) => delta::unsupported(&o.delta),
        Op::GatedDeltaStep(o) => delta::unsupported(&o.delta),
        Op::AttentionParts(o) => attention::unsupported(&o.attention),
        Op::Embed(_)
        | Op::RmsNorm(_)
        | Op::Rope(_)
        | Op::KvWrite(_)
        | Op::QkNormRopeWrite(_)
        | Op::SigmoidGate(_)
        | Op::SplitHeads(_)
        | Op::Conv1dSilu(_)
        | Op::GdnGates(_)
        | Op::L2Norm(_)
        | Op::GatedRmsNorm(_)
        | Op::RouterTopK(_)
        | Op::GroupRows(_)
        | Op::SwiGlu(_)
        | Op::CombineExperts(_)
        | Op::SharedExpertAdd(_)
        | Op::Add(_)
        | Op::MoeOutput(_)
        | Op::GatherRows(_)
        | Op::ExpandWeights(_)
        | Op::NormLinears(_)
        | Op::LinearAdd(_)
        | Op::MoeGateUp(_)
        | Op::MoeDown(_)
        | Op::AttentionMerge(_)
        | Op::Sample(_) => None,
    }
}

/// The launches of an op, which may run in any order but for their turns; none if the step has no rows for it.
pub fn lower<'a>(step: &Step<'a>, op: &Op) -> Vec<Prepared<'a>> {
    let variants = policy::variants(op, &step.counts, step.switches, step.abilities);
    let grid = variants[step.variant % variants.len()];
    if grid.groups.contains(&0) {
        return Vec::new();
    }
    match op {
        Op::Embed(o) => vec![matmul::embed(step, grid, o)],
        Op::Linear(o) => vec![matmul::linear(step, grid, o)],
        Op::ExpertLinear(o) => vec![matmul::expert_linear(step, grid, o)],
        Op::ExpertGateUp(o) => vec![matmul::expert_gate_up(step, grid, o)],
        Op::RmsNorm(o) => vec![rows::rms_norm(step, grid, o)],
        Op::L2Norm(o) => vec![rows::l2_norm(step, grid, o)],
        Op::GatedRmsNorm(o) => vec![rows::gated_rms_norm(step, grid, o)],
        Op::RouterTopK(o) => vec![rows::router_top_k(step, grid, o)],
        Op::GroupRows(o) => vec![rows::group_rows(step, grid, o)],
        Op::Rope(o) => vec![attention::rope(step, grid, o)],
        Op::KvWrite(o) => vec![attention::kv_write(step, grid, o)],
        Op::QkNormRopeWrite(o) => vec![attention::qk_norm_rope_write(step, grid, o)],
        Op::Attention(o) => vec![attention::attention(step, grid, o)],
        Op::Conv1dSilu(o) => delta::conv1d_silu(step, grid, o),
        Op::GatedDelta(o) => delta::gated_delta(step, grid, o, None),
        Op::GatedDeltaNorm(o) => delta::gated_delta(step, grid, &o.delta, Some(&o.norm)),
        Op::GdnGates(o) => vec![delta::gdn_gates(step, grid, o)],
        Op::SigmoidGate(o) => vec![elementwise::sigmoid_gate(step, grid, o)],
        Op::SplitHeads(o) => vec![elementwise::split_heads(step, grid, o)],
        Op::SwiGlu(o) => vec![elementwise::swiglu(step, grid, o)],
        Op::CombineExperts(o) => vec![elementwise::combine_experts(step, grid, o)],
        Op::SharedExpertAdd(o) => vec![elementwise::shared_expert_add(step, grid, o)],
        Op::Add(o) => vec![elementwise::add(step, grid, o)],
        Op::MoeOutput(o) => vec![elementwise::moe_output(step, grid, o)],
        Op::GatherRows(o) => vec![elementwise::gather_rows(step, grid, o)],
        Op::ExpandWeights(o) => vec![matmul::expand_weights(step, grid, o)],
        Op::NormLinears(o) => vec![fused::norm_linears(step, grid, o)],
        Op::LinearAdd(o) => vec![fused::linear_add(step, grid, o)],
        Op::MoeGateUp(o) => vec![fused::moe_gate_up(step, grid, o)],
        Op::MoeDown(o) => vec![fused::moe_down(step, grid, o)],
        Op::GatedDeltaStep(o) => delta::gated_delta_step(step, grid, o),
        Op::AttentionParts(o) => vec![attention::attention_parts(step, grid, o)],
        Op::AttentionMerge(o) => vec![attention::attention_merge(step, grid, o)],
        Op::Sample(o) => sample::sample(step, grid, o),
        Op::QuantizeRows(_) => unreachable!("{} is no kernel here", op.kind().name()),
    }
}
