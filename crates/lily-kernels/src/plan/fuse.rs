//! The fusion table. A row names a run of consecutive ops, the switch that turns it off and how the run becomes one
//! or a few; the model never says `if fused`. A row fires only if nothing outside the run reads what it no longer writes.

use super::arena::Temps;
use super::{Phase, PlanKey};
use crate::devices::DeviceKind;
use crate::op::Rows;
use crate::op::{Access, Op, OpKind};
use crate::ops::attention_merge::AttentionMerge;
use crate::ops::attention_parts::{AttentionParts, Cut};
use crate::ops::expert_gate_up::ExpertGateUp;
use crate::ops::gated_delta_norm::GatedDeltaNorm;
use crate::ops::gated_delta_step::{GatedDeltaStep, PART};
use crate::ops::linear::{Activations, Linear};
use crate::ops::linear_add::{HeadScale, LinearAdd};
use crate::ops::moe_down::MoeDown;
use crate::ops::moe_gate_up::{MOST_ROWS, MoeGateUp};
use crate::ops::moe_output::MoeOutput;
use crate::ops::norm_linears::NormLinears;
use crate::ops::qk_norm_rope_write::QkNormRopeWrite;
use crate::tensor::DType;

/// One row.
pub struct Fusion {
    /// Name, which is also the switch.
    pub name: &'static str,
    /// Kinds of the run; of several, the first that fits.
    pub patterns: &'static [&'static [OpKind]],
    /// Where it pays.
    at: At,
    /// Rows that make what this one takes.
    needs: &'static [&'static str],
    /// Builds what replaces the run; `None` if the run's operands are not chained as that needs.
    fuse: fn(&[Op], &mut Temps) -> Option<Vec<Op>>,
}

/// Which steps a row is for.
#[derive(Debug, Clone, Copy)]
enum At {
    /// All.
    Every,
    /// Decode steps of up to so many rows: more are better off with kernels that take many rows at once.
    Decode(usize),
    /// All but prefill on a GPU, where a head's norm would hold its rows together in one threadgroup.
    NotGpuPrefill,
}

impl Fusion {
    /// Whether the row is tried for plans of a key.
    pub fn applies(&self, key: &PlanKey) -> bool {
        let here = match self.at {
            At::Every => true,
            At::NotGpuPrefill => key.phase == Phase::Decode || key.device == DeviceKind::Cpu,
            At::Decode(rows) => key.phase == Phase::Decode && key.token_bucket <= rows,
        };
        here && self.needs.iter().chain(&[self.name]).all(|name| key.switches.is_on(name, key.device))
    }
}

/// Rows of a step whose kernels take few.
const FEW_ROWS: usize = MOST_ROWS;

/// Every fusion. A row may build on what an earlier one made.
pub const FUSIONS: &[Fusion] = &[
    Fusion {
        name: "fuse-expert-in",
        patterns: &[&[OpKind::ExpertLinear, OpKind::ExpertLinear, OpKind::SwiGlu]],
        at: At::Every,
        needs: &[],
        fuse: |run, _| match run {
            [Op::ExpertLinear(gate), Op::ExpertLinear(up), Op::SwiGlu(act)]
                if (gate.out, up.out, gate.x, gate.groups) == (act.gate, act.up, up.x, up.groups) =>
            {
                Some(vec![ExpertGateUp { gate: gate.clone(), up: up.clone(), act: act.clone() }.into()])
            }
            _ => None,
        },
    },
    Fusion {
        name: "fuse-expert-out",
        patterns: &[&[OpKind::CombineExperts, OpKind::SharedExpertAdd, OpKind::Add]],
        at: At::Every,
        needs: &[],
        fuse: |run, _| match run {
            [Op::CombineExperts(combine), Op::SharedExpertAdd(shared), Op::Add(add)]
                if (combine.out, shared.out) == (shared.x, add.b) =>
            {
                Some(vec![MoeOutput { combine: combine.clone(), shared: shared.clone(), add: add.clone() }.into()])
            }
            _ => None,
        },
    },
    Fusion {
        name: "fuse-qk",
        patterns: &[&[OpKind::RmsNorm, OpKind::RmsNorm, OpKind::Rope, OpKind::Rope, OpKind::KvWrite]],
        at: At::Every,
        needs: &[],
        fuse: |run, _| match run {
            [Op::RmsNorm(qn), Op::RmsNorm(kn), Op::Rope(qr), Op::Rope(kr), Op::KvWrite(write)]
                if (qn.out, kn.out, kr.out) == (qr.x, kr.x, write.k) =>
            {
                let (q_norm, k_norm, q_rope, k_rope) = (qn.clone(), kn.clone(), qr.clone(), kr.clone());
                Some(vec![QkNormRopeWrite { q_norm, k_norm, q_rope, k_rope, write: write.clone() }.into()])
            }
            _ => None,
        },
    },
    Fusion {
        name: "fuse-gdn-norm",
        patterns: &[&[OpKind::GatedDelta, OpKind::GatedRmsNorm]],
        at: At::NotGpuPrefill,
        needs: &[],
        fuse: |run, _| match run {
            [Op::GatedDelta(delta), Op::GatedRmsNorm(norm)] if delta.out == norm.y => {
                Some(vec![GatedDeltaNorm { delta: delta.clone(), norm: norm.clone() }.into()])
            }
            _ => None,
        },
    },
    Fusion {
        name: "fuse-residual",
        patterns: &[&[OpKind::Linear, OpKind::Add]],
        at: At::Decode(FEW_ROWS),
        needs: &[],
        fuse: |run, _| match run {
            [Op::Linear(linear), Op::Add(add)]
                if [add.a, add.b].contains(&linear.out) && linear.rows == Rows::Tokens =>
            {
                Some(vec![LinearAdd { linear: linear.clone(), add: add.clone(), scale: None }.into()])
            }
            _ => None,
        },
    },
    Fusion {
        name: "fuse-norm-in",
        patterns: &[
            &[OpKind::RmsNorm, OpKind::Linear, OpKind::Linear, OpKind::Linear, OpKind::Linear],
            &[OpKind::RmsNorm, OpKind::Linear, OpKind::Linear, OpKind::Linear],
            &[OpKind::RmsNorm, OpKind::Linear, OpKind::Linear],
            &[OpKind::RmsNorm, OpKind::Linear],
        ],
        at: At::Decode(FEW_ROWS),
        needs: &[],
        fuse: fuse_norm_in,
    },
    Fusion {
        name: "fuse-gdn-in",
        patterns: &[&[OpKind::Conv1dSilu, OpKind::GdnGates, OpKind::L2Norm, OpKind::GatedDeltaNorm, OpKind::LinearAdd]],
        at: At::Decode(usize::MAX),
        needs: &["fuse-gdn-norm", "fuse-residual"],
        fuse: fuse_gdn_in,
    },
    Fusion {
        name: "fuse-experts",
        patterns: &[&[
            OpKind::RouterTopK,
            OpKind::GroupRows,
            OpKind::ExpertGateUp,
            OpKind::Linear,
            OpKind::Linear,
            OpKind::SwiGlu,
            OpKind::ExpertLinear,
            OpKind::Linear,
            OpKind::MoeOutput,
        ]],
        at: At::Decode(FEW_ROWS),
        needs: &["fuse-expert-in", "fuse-expert-out"],
        fuse: fuse_experts,
    },
    Fusion {
        name: "split-attention",
        patterns: &[&[OpKind::Attention, OpKind::SigmoidGate]],
        at: At::Decode(usize::MAX),
        needs: &[],
        fuse: |run, temps| match run {
            [Op::Attention(o), Op::SigmoidGate(gate)] if o.out == gate.x => {
                let cut = Cut::PLAIN;
                let cols = o.q_heads() * cut.capacity() * (o.layer.head_dim + 2);
                let parts = temps.tensor(o.q.rows, cols, DType::F32);
                let of = AttentionParts { attention: o.clone(), parts, cut };
                Some(vec![of.clone().into(), AttentionMerge { of, gate: gate.clone() }.into()])
            }
            _ => None,
        },
    },
    Fusion {
        name: "fixed-blocks",
        patterns: &[&[OpKind::AttentionParts, OpKind::AttentionMerge]],
        at: At::Decode(usize::MAX),
        needs: &["split-attention"],
        fuse: |run, _| match run {
            [Op::AttentionParts(parts), Op::AttentionMerge(merge)] => {
                let of = AttentionParts { cut: Cut::BLOCKS, ..parts.clone() };
                Some(vec![of.clone().into(), AttentionMerge { of, ..merge.clone() }.into()])
            }
            _ => None,
        },
    },
];

fn fuse_norm_in(run: &[Op], _: &mut Temps) -> Option<Vec<Op>> {
    let (Op::RmsNorm(norm), linears) = run.split_first()? else { return None };
    let reads_it = |op: &Op| {
        let Op::Linear(l) = op else { return None };
        ((l.x, l.rows) == (Activations::Full(norm.out), norm.rows)).then(|| l.clone())
    };
    let linears: Vec<Linear> = linears.iter().map(reads_it).collect::<Option<_>>()?;
    (norm.heads == 1).then(|| vec![NormLinears { norm: norm.clone(), linears }.into()])
}

fn fuse_gdn_in(run: &[Op], temps: &mut Temps) -> Option<Vec<Op>> {
    let [Op::Conv1dSilu(conv), Op::GdnGates(gates), Op::L2Norm(l2), Op::GatedDeltaNorm(o), Op::LinearAdd(out)] = run
    else {
        return None;
    };
    let (delta, norm) = (&o.delta, &o.norm);
    let chained = (l2.x, delta.v, delta.qk) == (conv.out, conv.out, l2.out)
        && (delta.decay, delta.beta) == (gates.decay, gates.beta)
        && out.linear.x == Activations::Full(norm.out);
    if !chained {
        return None;
    }
    let x = temps.tensor(norm.out.rows, norm.out.cols, DType::F32);
    let squares = temps.tensor(x.rows, delta.v_heads() * delta.v_dim().div_ceil(PART), DType::F32);
    let scale = HeadScale { x, squares, dim: delta.v_dim(), eps: norm.eps };
    let step = GatedDeltaStep {
        conv: conv.clone(),
        gates: gates.clone(),
        l2: l2.clone(),
        delta: delta.clone(),
        norm: norm.clone(),
        out: x,
        squares,
    };
    Some(vec![step.into(), LinearAdd { scale: Some(scale), ..out.clone() }.into()])
}

fn fuse_experts(run: &[Op], _: &mut Temps) -> Option<Vec<Op>> {
    let [
        Op::RouterTopK(router),
        Op::GroupRows(group),
        Op::ExpertGateUp(routed),
        Op::Linear(gate),
        Op::Linear(up),
        Op::SwiGlu(act),
        Op::ExpertLinear(down),
        Op::Linear(shared),
        Op::MoeOutput(output),
    ] = run
    else {
        return None;
    };
    let x = routed.gate.x;
    let chained = (gate.x, up.x, gate.out, up.out) == (x, x, act.gate, act.up)
        && (down.x, shared.x) == (Activations::Full(routed.act.out), Activations::Full(act.out))
        && (routed.gate.groups, down.groups, group.experts) == (group.groups, group.groups, router.experts)
        && (output.combine.x, output.shared.shared) == (down.out, shared.out);
    let experts = router.experts;
    let gate_up = MoeGateUp { experts, routed: routed.clone(), gate: gate.clone(), up: up.clone(), act: act.clone() };
    let down = MoeDown { experts, routed: down.clone(), shared: shared.clone(), output: output.clone() };
    chained.then(|| vec![router.clone().into(), gate_up.into(), down.into()])
}

/// Applies every row that is switched on; returns the hits of each row, in table order.
pub fn apply(
    ops: &mut Vec<(Op, String)>,
    temps: &mut Temps,
    keep: &[Access],
    key: &PlanKey,
) -> Vec<(&'static str, usize)> {
    FUSIONS.iter().map(|f| (f.name, if f.applies(key) { apply_row(f, ops, temps, keep) } else { 0 })).collect()
}

fn apply_row(fusion: &Fusion, ops: &mut Vec<(Op, String)>, temps: &mut Temps, keep: &[Access]) -> usize {
    let (mut hits, mut at) = (0, 0);
    while at < ops.len() {
        let found = fusion.patterns.iter().find_map(|p| Some((p.len(), try_at(fusion, p, ops, temps, at, keep)?)));
        if let Some((run, fused)) = found {
            let scope = ops[at].1.clone();
            ops.splice(at..at + run, fused.into_iter().map(|op| (op, scope.clone())));
            hits += 1;
        }
        at += 1;
    }
    hits
}

fn try_at(
    fusion: &Fusion,
    pattern: &[OpKind],
    ops: &[(Op, String)],
    temps: &mut Temps,
    at: usize,
    keep: &[Access],
) -> Option<Vec<Op>> {
    let window = ops.get(at..at + pattern.len())?;
    if !window.iter().map(|(op, _)| op.kind()).eq(pattern.iter().copied()) {
        return None;
    }
    let run: Vec<Op> = window.iter().map(|(op, _)| op.clone()).collect();
    let fused = (fusion.fuse)(&run, temps)?;
    fused.iter().for_each(|op| op.contract().check());
    let still_written: Vec<Access> = fused.iter().flat_map(|op| op.contract().writes()).collect();
    let lost = |a: &Access| !still_written.contains(a);
    let dropped: Vec<Access> = run.iter().flat_map(|op| op.contract().writes()).filter(lost).collect();
    let outside = ops[..at].iter().chain(&ops[at + window.len()..]);
    let needed = outside
        .flat_map(|(op, _)| op.contract().reads())
        .chain(keep.iter().copied())
        .any(|read| dropped.iter().any(|d| d.overlaps(&read)));
    (!needed).then_some(fused)
}
