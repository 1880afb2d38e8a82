//! What goes over the wire, in OpenAI's words. Nothing below `serve/` knows these types.

mod reply;
mod request;

pub use reply::{ChatCompletion, Chunk, Delta, Head, WireToolCall, finish_reason, random_id};
pub use request::ChatRequest;
