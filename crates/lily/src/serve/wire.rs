//! What goes over the wire, in the words of OpenAI and Anthropic. Nothing below `serve/` knows these types.

mod anthropic;
mod anthropic_reply;
mod ask;
mod chat;
mod chat_reply;
#[cfg(test)]
mod chat_tests;
mod completions;
mod completions_reply;
mod fields;
mod messages;
mod reply;
mod responses;
mod responses_reply;
mod sampling;
mod thinking;
mod tokens;
mod tools;
mod unique;

pub use anthropic::MessagesRequest;
pub use anthropic_reply::{AnthropicMessage, MessageReply};
pub use ask::Ask;
pub use chat::ChatRequest;
pub use chat_reply::{ChatCompletion, ChatCompletionChunk, ChatReply};
pub use completions::CompletionRequest;
pub use completions_reply::{CompletionReply, TextCompletion};
#[cfg(test)]
pub use fields::taken;
pub use reply::random_id;
pub use responses::ResponsesRequest;
pub use responses_reply::ResponseReply;
pub use tokens::{DetokenizeRequest, TokenizeRequest, Tokens};
