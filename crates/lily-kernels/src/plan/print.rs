//! A plan as text, for `lily plan` and for snapshot tests.

use std::fmt::Write as _;

use super::{FUSIONS, Plan, Program};
use crate::devices::DeviceKind;
use crate::op::{Cost, Counts, Op, OpKind};
use crate::policy::{self, Abilities, Grid};

fn row(out: &mut String, name: &str, count: usize, cost: Cost) {
    let moved = (cost.read + cost.written) as f64;
    let intensity = if moved > 0.0 { cost.flops as f64 / moved } else { 0.0 };
    let _ = writeln!(
        out,
        "{name:<20} {count:>6} {:>16} {:>14} {:>18} {intensity:>9.2}",
        cost.read, cost.written, cost.flops
    );
}

/// The fewest threadgroups among the dispatches that move more than 1 MiB: with few, most of a GPU's cores look on.
fn least_groups<'a>(plan: &'a Plan, counts: &Counts) -> Option<(usize, &'a Op)> {
    let large = plan.dispatches.iter().map(|d| &d.op).filter(|op| {
        let cost = op.contract().cost(counts);
        cost.read + cost.written > 1 << 20
    });
    let groups = |op| policy::grid(op, counts, plan.key.switches, Abilities::default()).groups.iter().product();
    large.map(|op| (groups(op), op)).min_by_key(|(groups, _)| *groups)
}

/// Totals by op kind, and with `dispatches` each dispatch with its stage.
pub fn report(plan: &Plan, counts: &Counts, dispatches: bool) -> String {
    let key = &plan.key;
    let mut out = String::new();
    let program = match key.program {
        Program::Forward => "forward",
        Program::Sample => "sample",
    };
    let _ = writeln!(
        out,
        "{program} {:?}: {} tokens, {} sequences, {} rows with logits, {:?} precision",
        key.phase, counts.tokens, counts.sequences, counts.outputs, key.precision
    );
    let off: Vec<_> = key.switches.off().collect();
    if !off.is_empty() {
        let _ = writeln!(out, "switched off: {}", off.join(", "));
    }
    let _ = writeln!(out, "dispatches: {}", plan.dispatches.len());
    let _ = writeln!(out, "sequential stages: {}", plan.stages);
    if plan.command_buffers() > 1 {
        let _ = writeln!(out, "command buffers: {}", plan.command_buffers());
    }
    let _ = writeln!(out, "arena bytes: {}", plan.arena_bytes);
    for (fusion, (name, hits)) in FUSIONS.iter().zip(&plan.fusions) {
        if fusion.applies(key) {
            let _ = writeln!(out, "{name}: {hits} hits");
        }
    }
    if key.device == DeviceKind::Metal
        && let Some((groups, op)) = least_groups(plan, counts)
    {
        let _ = writeln!(out, "threadgroups of a dispatch over 1 MiB: {groups} at least ({})", op.kind().name());
    }
    let _ = writeln!(
        out,
        "\n{:<20} {:>6} {:>16} {:>14} {:>18} {:>9}",
        "op", "count", "bytes read", "bytes written", "FLOPs", "FLOP/byte"
    );
    for &kind in OpKind::ALL {
        let of_kind = plan.dispatches.iter().filter(|d| d.op.kind() == kind);
        let (count, cost) =
            of_kind.fold((0, Cost::default()), |(n, sum), d| (n + 1, sum + d.op.contract().cost(counts)));
        if count > 0 {
            row(&mut out, kind.name(), count, cost);
        }
    }
    row(&mut out, "total", plan.dispatches.len(), plan.cost(counts));
    if dispatches {
        let _ = writeln!(out, "\nstage  scope                op");
        for d in &plan.dispatches {
            let cost = d.op.contract().cost(counts);
            let name = d.op.kind().name();
            let _ = write!(out, "{:>5}  {:<20} {name:<20} {:>14} B", d.stage, d.scope, cost.read + cost.written);
            if key.device == DeviceKind::Metal {
                let grid = policy::grid(&d.op, counts, key.switches, Abilities::default());
                let Grid { kernel, groups: [x, y], threads } = grid;
                let _ = write!(out, "  {kernel} {x}×{y} threadgroups of {threads}");
            }
            out.push('\n');
        }
    }
    out
}
