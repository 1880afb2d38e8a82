//! Records a model's step in op vocabulary. Decides what precision means for a matmul (whether its activations are
//! quantized, once per input) so that the model need not.

use std::collections::HashMap;

use super::arena::Temps;
use super::{Dispatch, Phase, Plan, PlanKey, Precision, Tap, arena, fuse, hazard};
use crate::devices::DeviceKind;
use crate::op::{Access, Op, Rows};
use crate::ops::add::Add;
use crate::ops::attention::Attention;
use crate::ops::combine_experts::CombineExperts;
use crate::ops::conv1d_silu::Conv1dSilu;
use crate::ops::embed::Embed;
use crate::ops::expert_linear::ExpertLinear;
use crate::ops::gated_delta::GatedDelta;
use crate::ops::gated_rms_norm::GatedRmsNorm;
use crate::ops::gather_rows::GatherRows;
use crate::ops::gdn_gates::GdnGates;
use crate::ops::group_rows::{GroupRows, Groups};
use crate::ops::kv_write::{KvLayer, KvWrite};
use crate::ops::l2_norm::L2Norm;
use crate::ops::linear::{Activations, Linear};
use crate::ops::quantize_rows::{GROUP, QuantizeRows, Quantized};
use crate::ops::rms_norm::RmsNorm;
use crate::ops::rope::Rope;
use crate::ops::router_top_k::RouterTopK;
use crate::ops::sample::Sample;
use crate::ops::shared_expert_add::SharedExpertAdd;
use crate::ops::sigmoid_gate::SigmoidGate;
use crate::ops::split_heads::{Parts, SplitHeads};
use crate::ops::swiglu::SwiGlu;
use crate::tensor::{DType, Matrix, Space, Tensor};

/// A matmul weight and what the model allows its activations to be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Weight<'a> {
    /// int8 activations allowed in fast precision.
    Bulk(&'a Matrix),
    /// f32 activations always (router, gates): small, and decisions hang on them.
    Sensitive(&'a Matrix),
}

/// Builds one plan.
pub struct Recorder {
    key: PlanKey,
    rows: Rows,
    scope: String,
    temps: Temps,
    ops: Vec<(Op, String)>,
    quantized: HashMap<Tensor, Quantized>,
    taps: Vec<(String, Tensor, Rows)>,
    logits_bytes: usize,
}

impl Recorder {
    /// An empty plan.
    pub fn new(key: PlanKey) -> Self {
        Self {
            key,
            rows: Rows::Tokens,
            scope: String::new(),
            temps: Temps::default(),
            ops: Vec::new(),
            quantized: HashMap::new(),
            taps: Vec::new(),
            logits_bytes: 0,
        }
    }

    /// What is being recorded.
    pub const fn key(&self) -> &PlanKey {
        &self.key
    }

    /// Names the part of the model that the next ops belong to.
    pub fn scope(&mut self, name: impl Into<String>) {
        self.scope = name.into();
    }

    /// Names a tensor for observers.
    pub fn tap(&mut self, name: impl Into<String>, tensor: Tensor) {
        self.taps.push((name.into(), tensor, self.rows));
    }

    fn temp(&mut self, rows: usize, cols: usize, dtype: DType) -> Tensor {
        self.temps.tensor(rows, cols, dtype)
    }

    fn like(&mut self, t: &Tensor) -> Tensor {
        self.temp(t.rows, t.cols, t.dtype)
    }

    fn push(&mut self, op: impl Into<Op>) {
        let op = op.into();
        op.contract().check();
        self.ops.push((op, self.scope.clone()));
    }

    /// `[T, D]` embeddings of this step's tokens.
    pub fn embed(&mut self, table: &Matrix) -> Tensor {
        let rows = self.key.token_bucket;
        let tokens = Tensor { space: Space::Tokens, offset: 0, rows, cols: 1, dtype: DType::U32 };
        let out = self.temp(rows, table.cols, DType::F32);
        self.push(Embed { tokens, table: table.clone(), out });
        out
    }

    /// Whole-row RMS norm.
    pub fn rms_norm(&mut self, x: Tensor, weight: Tensor, eps: f32) -> Tensor {
        self.head_norm(x, weight, 1, x.cols, eps)
    }

    /// RMS norm of `heads` runs, `stride` elements apart.
    pub fn head_norm(&mut self, x: Tensor, weight: Tensor, heads: usize, stride: usize, eps: f32) -> Tensor {
        let out = self.temp(x.rows, heads * weight.cols, DType::F32);
        self.push(RmsNorm { rows: self.rows, x, weight, out, heads, stride, eps });
        out
    }

    /// int8 form of a tensor, recorded once however many matmuls read it.
    fn quantize(&mut self, x: Tensor, per_row: usize) -> Quantized {
        if let Some(q) = self.quantized.get(&x) {
            return *q;
        }
        let out = Quantized {
            codes: self.temp(x.rows, x.cols, DType::I8),
            scales: self.temp(x.rows, x.cols / GROUP, DType::F32),
            sums: self.temp(x.rows, x.cols / GROUP, DType::F32),
        };
        self.push(QuantizeRows { rows: self.rows, per_row, x, out });
        self.quantized.insert(x, out);
        out
    }

    fn activations(&mut self, x: Tensor, weight: Weight, per_row: usize) -> (Activations, Matrix) {
        match (self.key.precision, weight) {
            (Precision::Fast, Weight::Bulk(m)) if m.format.takes_int8(m.cols) => {
                (Activations::Quantized(self.quantize(x, per_row)), m.clone())
            }
            (_, Weight::Bulk(m) | Weight::Sensitive(m)) => (Activations::Full(x), m.clone()),
        }
    }

    /// Whether a product may be of bf16 numbers.
    fn may_round(&self, weight: Weight) -> bool {
        self.key.precision == Precision::Half && matches!(weight, Weight::Bulk(_))
    }

    /// `x · Wᵀ`.
    pub fn linear(&mut self, x: Tensor, weight: Weight) -> Tensor {
        let may_round = self.may_round(weight);
        let (x, weight) = self.activations(x, weight, 1);
        let out = self.temp(x.shape().0, weight.rows, DType::F32);
        self.push(Linear { rows: self.rows, x, weight, out, may_round });
        out
    }

    /// Logits of the output rows, in `Space::Logits`.
    pub fn logits(&mut self, x: Tensor, weight: Weight) {
        let may_round = self.may_round(weight);
        let (x, weight) = self.activations(x, weight, 1);
        let out = logits_tensor(x.shape().0, weight.rows);
        self.logits_bytes = out.bytes();
        self.push(Linear { rows: self.rows, x, weight, out, may_round });
    }

    /// Partial rotary embedding.
    pub fn rope(&mut self, x: Tensor, inv_freq: Tensor, head_dim: usize) -> Tensor {
        let out = self.like(&x);
        self.push(Rope { x, inv_freq, out, head_dim });
        out
    }

    /// Appends keys and values to the cache.
    pub fn kv_write(&mut self, k: Tensor, v: Tensor, layer: KvLayer) {
        self.push(KvWrite { k, v, layer });
    }

    /// Causal attention over the cache.
    pub fn attention(&mut self, q: Tensor, layer: KvLayer) -> Tensor {
        let out = self.like(&q);
        self.push(Attention { q, layer, out });
        out
    }

    /// `x ⊙ σ(gate)`, the gate being the second half of each of `heads` heads of `gate`.
    pub fn sigmoid_gate(&mut self, x: Tensor, gate: Tensor, heads: usize) -> Tensor {
        let stride = gate.cols / heads;
        let out = self.like(&x);
        self.push(SigmoidGate { x, gate, out, heads, stride, start: stride - x.cols / heads });
        out
    }

    /// The parts of each of `heads` heads of a fused projection, part by part.
    pub fn split_heads(&mut self, x: Tensor, heads: usize, start: usize, widths: [usize; 3]) -> Tensor {
        let out = self.temp(x.rows, heads * widths.iter().sum::<usize>(), DType::F32);
        self.push(SplitHeads { x, out, heads, parts: Parts { start, widths } });
        out
    }

    /// Causal depthwise convolution and silu; `state` is the range in `Space::StateIn`.
    pub fn conv1d_silu(&mut self, x: Tensor, weight: Tensor, state: Tensor) -> Tensor {
        let out = self.like(&x);
        let state_out = Tensor { space: Space::StateOut, ..state };
        self.push(Conv1dSilu { x, weight, state_in: state, state_out, out });
        out
    }

    /// `(decay, beta)` of the delta rule.
    pub fn gdn_gates(&mut self, a: Tensor, b: Tensor, a_log: Tensor, dt_bias: Tensor) -> (Tensor, Tensor) {
        let (decay, beta) = (self.like(&a), self.like(&b));
        self.push(GdnGates { a, b, a_log, dt_bias, decay, beta });
        (decay, beta)
    }

    /// Normed queries and keys (`k_heads` heads of `dim` each) of the convolved projection.
    pub fn l2_norm(&mut self, x: Tensor, k_heads: usize, dim: usize) -> Tensor {
        let out = self.temp(x.rows, 2 * k_heads * dim, DType::F32);
        self.push(L2Norm { x, out, dim });
        out
    }

    /// The recurrence; `gates` = (decay, beta), `state` is the range in `Space::StateIn`.
    pub fn gated_delta(&mut self, qk: Tensor, v: Tensor, gates: (Tensor, Tensor), state: Tensor) -> Tensor {
        let out = self.temp(v.rows, state.rows, DType::F32);
        let state_out = Tensor { space: Space::StateOut, ..state };
        self.push(GatedDelta { qk, v, decay: gates.0, beta: gates.1, state_in: state, state_out, out });
        out
    }

    /// `rms_norm(y) ⊙ silu(z)` per head.
    pub fn gated_rms_norm(&mut self, y: Tensor, z: Tensor, weight: Tensor, eps: f32) -> Tensor {
        let out = self.like(&y);
        self.push(GatedRmsNorm { y, z, weight, out, eps });
        out
    }

    /// `(experts, weights)` of each token, `[T, K]`.
    pub fn router_top_k(&mut self, logits: Tensor, top_k: usize) -> (Tensor, Tensor) {
        let experts = self.temp(logits.rows, top_k, DType::U32);
        let weights = self.temp(logits.rows, top_k, DType::F32);
        self.push(RouterTopK { logits, experts, weights });
        (experts, weights)
    }

    /// Pairs sorted by expert.
    pub fn group_rows(&mut self, experts: Tensor, num_experts: usize) -> Groups {
        let groups = Groups {
            offsets: self.temp(1, num_experts + 1, DType::U32),
            order: self.temp(experts.rows, experts.cols, DType::U32),
        };
        self.push(GroupRows { experts, groups });
        groups
    }

    /// Grouped matmul of token rows, or of pair rows if `x` has one row per pair; `[T·K, N]`.
    pub fn expert_linear(&mut self, x: Tensor, weight: Weight, groups: Groups) -> Tensor {
        let pairs = groups.order.rows * groups.top_k();
        let by_pair = x.rows == pairs && groups.top_k() > 1;
        let (x, weight) = self.activations(x, weight, if by_pair { groups.top_k() } else { 1 });
        let out = self.temp(pairs, weight.rows, DType::F32);
        self.push(ExpertLinear { x, by_pair, weight, groups, out });
        out
    }

    /// `silu(gate) ⊙ up`.
    pub fn swiglu(&mut self, gate: Tensor, up: Tensor) -> Tensor {
        let out = self.like(&gate);
        self.push(SwiGlu { gate, up, out, per_token: gate.rows / self.key.token_bucket });
        out
    }

    /// Weighted sum of each token's experts.
    pub fn combine_experts(&mut self, x: Tensor, weights: Tensor) -> Tensor {
        let out = self.temp(weights.rows, x.cols, DType::F32);
        self.push(CombineExperts { x, weights, out });
        out
    }

    /// `x + σ(gate) · shared`.
    pub fn shared_expert_add(&mut self, x: Tensor, shared: Tensor, gate: Tensor) -> Tensor {
        let out = self.like(&x);
        self.push(SharedExpertAdd { x, shared, gate, out });
        out
    }

    /// `a + b`.
    pub fn add(&mut self, a: Tensor, b: Tensor) -> Tensor {
        let out = self.like(&a);
        self.push(Add { a, b, out });
        out
    }

    /// Keeps the rows whose logits are wanted; ops recorded from here on count those.
    pub fn gather_outputs(&mut self, x: Tensor) -> Tensor {
        let out = self.temp(self.key.output_bucket(), x.cols, DType::F32);
        self.push(GatherRows { x, out });
        self.rows = Rows::Outputs;
        out
    }

    /// Chooses the next token of each output row of `Space::Logits`.
    pub fn sample(&mut self, vocab_size: usize) {
        let rows = self.key.output_bucket();
        let logits = logits_tensor(rows, vocab_size);
        let tokens = Tensor { space: Space::NextTokens, offset: 0, rows, cols: 1, dtype: DType::U32 };
        self.logits_bytes = logits.bytes();
        self.push(Sample { logits, tokens });
    }

    /// Fuses, stages and places. `expected` is how often each fusion must have fired where it is switched on: a
    /// fusion that silently stops firing is a bug.
    pub fn finish(mut self, expected: &[(&str, usize)]) -> Plan {
        let keep: Vec<Access> = self.taps.iter().map(|(_, t, _)| Access::from(t)).collect();
        let fusions = fuse::apply(&mut self.ops, &mut self.temps, &keep, &self.key);
        for (fusion, (name, hits)) in fuse::FUSIONS.iter().zip(&fusions) {
            let want = expected.iter().find(|(n, _)| n == name).map_or(0, |(_, count)| *count);
            let on = fusion.applies(&self.key);
            assert_eq!(*hits, if on { want } else { 0 }, "{name} fired {hits} times, {want} expected");
        }
        super::expand::apply(&mut self.ops, &mut self.temps, &self.key);
        let serial = self.key.device == DeviceKind::Metal && !self.key.switches.is_on("concurrent", self.key.device);
        let stages =
            if serial { Vec::from_iter(0..self.ops.len()) } else { hazard::stages(self.ops.iter().map(|(op, _)| op)) };
        let (mut ops, scopes): (Vec<(Op, usize)>, Vec<String>) =
            self.ops.into_iter().zip(&stages).map(|((op, scope), stage)| ((op, *stage), scope)).unzip();
        let (offsets, arena_bytes) = arena::place(&ops, &self.temps.0);
        let settle = |t: &mut Tensor| {
            if let Space::Temp(id) = t.space {
                (t.space, t.offset) = (Space::Arena, t.offset + offsets[id as usize]);
            }
        };
        let writers: Vec<Vec<Access>> = ops.iter().map(|(op, _)| op.contract().writes()).collect();
        // Stage order: with it, ranges that share bytes are never touched out of turn.
        let mut order: Vec<usize> = (0..ops.len()).collect();
        order.sort_by_key(|&i| stages[i]);
        let taps = self.taps.into_iter().filter_map(|(name, mut tensor, rows)| {
            let access = Access::from(&tensor);
            let dispatch = order.iter().position(|&i| writers[i].contains(&access))?;
            settle(&mut tensor);
            Some(Tap { name, dispatch, tensor, rows })
        });
        let taps = taps.collect();
        for (op, _) in &mut ops {
            op.tensors().into_iter().for_each(settle);
        }
        let dispatches = order
            .iter()
            .map(|&i| Dispatch { op: ops[i].0.clone(), stage: ops[i].1, scope: scopes[i].clone() })
            .collect();
        let stages = stages.iter().max().map_or(0, |s| s + 1);
        let logits_bytes = self.logits_bytes;
        Plan { key: self.key, dispatches, stages, arena_bytes, logits_bytes, taps, fusions }
    }
}

fn logits_tensor(rows: usize, vocab_size: usize) -> Tensor {
    Tensor { space: Space::Logits, offset: 0, rows, cols: vocab_size, dtype: DType::F32 }
}

impl Phase {
    /// Sequences that a step of `tokens` tokens holds at most.
    pub const fn sequences(self, tokens: usize) -> usize {
        match self {
            Self::Prefill => 1,
            Self::Decode => tokens,
        }
    }
}
