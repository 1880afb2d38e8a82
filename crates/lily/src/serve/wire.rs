//! What goes over the wire, in OpenAI's words. Nothing below `serve/` knows these types.

mod fields;
mod reply;
mod request;
mod unique;

pub use reply::{ChatCompletion, Chunk, Delta, Head, WireToolCall, finish_reason, random_id};
pub use request::ChatRequest;
