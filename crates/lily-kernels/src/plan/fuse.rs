//! The fusion table. A row names a run of consecutive ops, the switch that turns it off and how the run becomes one
//! or a few; the model never says `if fused`. A row fires only if nothing outside the run reads what it no longer writes.

use super::arena::Temps;
use super::{Phase, PlanKey};
use crate::op::{Access, Op, OpKind};
use crate::ops::expert_gate_up::ExpertGateUp;
use crate::ops::gated_delta_norm::GatedDeltaNorm;
use crate::ops::moe_output::MoeOutput;
use crate::ops::qk_norm_rope_write::QkNormRopeWrite;

/// One row.
pub struct Fusion {
    /// Name, which is also the switch.
    pub name: &'static str,
    /// Kinds of the run; of several, the first that fits.
    pub patterns: &'static [&'static [OpKind]],
    /// Where it pays.
    at: At,
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
}

impl Fusion {
    /// Whether the row is tried for plans of a key.
    pub fn applies(&self, key: &PlanKey) -> bool {
        let here = match self.at {
            At::Every => true,
            At::Decode(rows) => key.phase == Phase::Decode && key.token_bucket <= rows,
        };
        here && key.switches.is_on(self.name, key.device)
    }
}

/// Every fusion. A row may build on what an earlier one made.
pub const FUSIONS: &[Fusion] = &[
    Fusion {
        name: "fuse-expert-in",
        patterns: &[&[OpKind::ExpertLinear, OpKind::ExpertLinear, OpKind::SwiGlu]],
        at: At::Every,
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
        at: At::Every,
        fuse: |run, _| match run {
            [Op::GatedDelta(delta), Op::GatedRmsNorm(norm)] if delta.out == norm.y => {
                Some(vec![GatedDeltaNorm { delta: delta.clone(), norm: norm.clone() }.into()])
            }
            _ => None,
        },
    },
];

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
