//! Text in, text out. The modules stand in the order of the flow:
//! request → tokens → schedule → step plan → dispatches → logits → sampler → text.
//! Names no GPU and holds no unsafe code; devices live in `lily-kernels`.
#![forbid(unsafe_code)]

pub mod request; // 1 what is asked
pub mod text; // 2 text ↔ tokens, template, parser
pub mod prepare; // a request, checked and tokenized, on any thread
pub mod schedule; // 3 the queue: one thread owns the engine
pub mod checkpoint; // 4 files → tensors: the only place that bends a layout
pub mod model; // 5 config, weights, the math
pub mod budget; // 6 how much memory all that will take
pub mod step; // 7 plan key → plan; step inputs; run
pub mod session; // 8 what a conversation keeps on the device
pub mod runtime; // 9 a model on a device: steps and sessions
mod penalties; // 10 what changes logits before a token is chosen
mod logprobs; // 10 how likely the chosen one was
mod structure; // 10 which tokens a grammar leaves, found beside the forward pass
mod generate; // 11 one request on its way: what is next, what a token means, how it ends
mod batch; // 12 all running requests, side by side
pub mod engine; // the door: opens a model, owns device and sessions
pub mod report; // what a model is and would do, for people
pub mod error; // why any of it may fail
