//! Text in, text out. The modules stand in the order of the flow:
//! request → tokens → (schedule) → step plan → dispatches → logits → sampler → text.
//! Names no GPU and holds no unsafe code; devices live in `lily-kernels`.
#![forbid(unsafe_code)]

pub mod request; // 1 what is asked
pub mod text; // 2 text ↔ tokens, template, parser
pub mod checkpoint; // 3 files → tensors: the only place that bends a layout
pub mod model; // 4 config, weights, the math
pub mod engine; // the door: opens a model, owns device and sessions
pub mod schedule; // the queue in front of the door: one thread owns the engine
