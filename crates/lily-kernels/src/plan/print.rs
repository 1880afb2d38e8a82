//! A plan as text, for `lily plan` and for snapshot tests.

use std::fmt::Write as _;

use super::{Plan, Program};
use crate::op::{Cost, Counts, OpKind};

fn row(out: &mut String, name: &str, count: usize, cost: Cost) {
    let moved = (cost.read + cost.written) as f64;
    let intensity = if moved > 0.0 { cost.flops as f64 / moved } else { 0.0 };
    let _ = writeln!(
        out,
        "{name:<20} {count:>6} {:>16} {:>14} {:>18} {intensity:>9.2}",
        cost.read, cost.written, cost.flops
    );
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
    for (name, hits) in &plan.fusions {
        let _ = writeln!(out, "{name}: {hits} hits");
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
            let _ = writeln!(out, "{:>5}  {:<20} {name:<20} {:>14} B", d.stage, d.scope, cost.read + cost.written);
        }
    }
    out
}
