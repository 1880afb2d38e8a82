//! The whole engine on real checkpoints: goldens, behaviour, byte equality, memory.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "all of this is test code, and it shows what it measured")]

#[path = "../support/mod.rs"]
mod support;

mod behaviour; // cases.json at its floors
mod bytes; // the same bytes, however the work is cut
mod contracts; // declared bytes, plan snapshots
mod devices; // whole models on the other devices of this build
mod fidelity; // fast precision against the f32 golden
mod golden; // exact precision against mlx-lm and transformers
mod handoff; // running ahead of the tokens that were read
mod harness; // running steps, reading goldens
mod inspect; // what inspect says of each checkpoint
mod memory; // arena, sessions, cancellation
mod numbers; // models whose numbers are none
mod side_by_side; // requests that run at the same time
mod sampling; // penalties, bias, stop strings, log-probabilities
mod structure; // answers that obey a schema or call a tool
mod turns; // conversations: what of them is reused
