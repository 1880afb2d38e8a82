//! The fusion table. A row names a run of consecutive ops, the switch that turns it off and how the run becomes one
//! op; the model never says `if fused`. A row fires only if nothing outside the run reads what it no longer writes.

use crate::op::{Access, Op, OpKind};
use crate::ops::expert_gate_up::ExpertGateUp;
use crate::ops::gated_delta_norm::GatedDeltaNorm;
use crate::ops::moe_output::MoeOutput;
use crate::ops::qk_norm_rope_write::QkNormRopeWrite;
use crate::switches::Switches;

/// One row.
pub struct Fusion {
    /// Name, which is also the switch.
    pub name: &'static str,
    /// Kinds of the run.
    pub pattern: &'static [OpKind],
    /// Builds the fused op; `None` if the run's operands are not chained as the fused op needs.
    fuse: fn(&[Op]) -> Option<Op>,
}

/// Every fusion.
pub const FUSIONS: &[Fusion] = &[
    Fusion {
        name: "fuse-expert-in",
        pattern: &[OpKind::ExpertLinear, OpKind::ExpertLinear, OpKind::SwiGlu],
        fuse: |run| match run {
            [Op::ExpertLinear(gate), Op::ExpertLinear(up), Op::SwiGlu(act)]
                if (gate.out, up.out, gate.x, gate.groups) == (act.gate, act.up, up.x, up.groups) =>
            {
                Some(ExpertGateUp { gate: gate.clone(), up: up.clone(), act: act.clone() }.into())
            }
            _ => None,
        },
    },
    Fusion {
        name: "fuse-expert-out",
        pattern: &[OpKind::CombineExperts, OpKind::SharedExpertAdd, OpKind::Add],
        fuse: |run| match run {
            [Op::CombineExperts(combine), Op::SharedExpertAdd(shared), Op::Add(add)]
                if (combine.out, shared.out) == (shared.x, add.b) =>
            {
                Some(MoeOutput { combine: combine.clone(), shared: shared.clone(), add: add.clone() }.into())
            }
            _ => None,
        },
    },
    Fusion {
        name: "fuse-qk",
        pattern: &[OpKind::RmsNorm, OpKind::RmsNorm, OpKind::Rope, OpKind::Rope, OpKind::KvWrite],
        fuse: |run| match run {
            [Op::RmsNorm(qn), Op::RmsNorm(kn), Op::Rope(qr), Op::Rope(kr), Op::KvWrite(write)]
                if (qn.out, kn.out, kr.out) == (qr.x, kr.x, write.k) =>
            {
                let (q_norm, k_norm, q_rope, k_rope) = (qn.clone(), kn.clone(), qr.clone(), kr.clone());
                Some(QkNormRopeWrite { q_norm, k_norm, q_rope, k_rope, write: write.clone() }.into())
            }
            _ => None,
        },
    },
    Fusion {
        name: "fuse-gdn-norm",
        pattern: &[OpKind::GatedDelta, OpKind::GatedRmsNorm],
        fuse: |run| match run {
            [Op::GatedDelta(delta), Op::GatedRmsNorm(norm)] if delta.out == norm.y => {
                Some(GatedDeltaNorm { delta: delta.clone(), norm: norm.clone() }.into())
            }
            _ => None,
        },
    },
];

/// Applies every row that is switched on; returns the hits of each row, in table order.
pub fn apply(ops: &mut Vec<(Op, String)>, keep: &[Access], switches: Switches) -> Vec<(&'static str, usize)> {
    FUSIONS.iter().map(|f| (f.name, if switches.is_on(f.name) { apply_row(f, ops, keep) } else { 0 })).collect()
}

fn apply_row(fusion: &Fusion, ops: &mut Vec<(Op, String)>, keep: &[Access]) -> usize {
    let (mut hits, mut at) = (0, 0);
    while at + fusion.pattern.len() <= ops.len() {
        if let Some(fused) = try_at(fusion, ops, at, keep) {
            let scope = ops[at].1.clone();
            ops.splice(at..at + fusion.pattern.len(), [(fused, scope)]);
            hits += 1;
        }
        at += 1;
    }
    hits
}

fn try_at(fusion: &Fusion, ops: &[(Op, String)], at: usize, keep: &[Access]) -> Option<Op> {
    let window = &ops[at..at + fusion.pattern.len()];
    if !window.iter().map(|(op, _)| op.kind()).eq(fusion.pattern.iter().copied()) {
        return None;
    }
    let run: Vec<Op> = window.iter().map(|(op, _)| op.clone()).collect();
    let fused = (fusion.fuse)(&run)?;
    fused.contract().check();
    let still_written = fused.contract().writes();
    let lost = |a: &Access| !still_written.contains(a);
    let dropped: Vec<Access> = run.iter().flat_map(|op| op.contract().writes()).filter(lost).collect();
    let outside = ops[..at].iter().chain(&ops[at + window.len()..]);
    let needed = outside
        .flat_map(|(op, _)| op.contract().reads())
        .chain(keep.iter().copied())
        .any(|read| dropped.iter().any(|d| d.overlaps(&read)));
    (!needed).then_some(fused)
}
