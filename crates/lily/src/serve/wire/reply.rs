//! OpenAI's chat replies, whole and in chunks. The concatenation of a stream's deltas is the whole reply.

use lily_engine::request::{Completion, FinishReason, Logprob, TokenLogprobs, ToolCall, Usage};
use serde::Serialize;
use serde_json::Value;

/// What all objects of one reply share.
#[derive(Debug, Clone, Serialize)]
pub struct Head {
    /// `chatcmpl-…`
    pub id: String,
    /// Unix time in seconds.
    pub created: u64,
    /// The model that answers.
    pub model: String,
}

/// A whole reply.
#[derive(Debug, Serialize)]
pub struct ChatCompletion {
    #[serde(flatten)]
    head: Head,
    object: &'static str,
    choices: [Choice; 1],
    usage: WireUsage,
}

#[derive(Debug, Serialize)]
struct Choice {
    index: u32,
    message: Message,
    logprobs: Option<WireLogprobs>,
    finish_reason: &'static str,
}

#[derive(Debug, Serialize)]
struct Message {
    role: &'static str,
    content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<WireToolCall>,
}

impl ChatCompletion {
    /// The reply for a completion that was not cancelled.
    pub fn new(head: Head, completion: Completion) -> Self {
        let finish_reason = finish_reason(completion.finish_reason, !completion.tool_calls.is_empty());
        let only_calls = completion.content.is_empty() && !completion.tool_calls.is_empty();
        let message = Message {
            role: "assistant",
            content: (!only_calls).then_some(completion.content),
            reasoning_content: (!completion.reasoning.is_empty()).then_some(completion.reasoning),
            tool_calls: completion.tool_calls.iter().map(WireToolCall::new).collect(),
        };
        let of_content = |tokens: Vec<TokenLogprobs>| tokens.into_iter().filter(|token| token.in_content).collect();
        let logprobs = completion.logprobs.map(|tokens| WireLogprobs::new(of_content(tokens)));
        let choice = Choice { index: 0, message, logprobs, finish_reason };
        Self { object: "chat.completion", head, choices: [choice], usage: completion.usage.into() }
    }
}

/// One piece of a streamed reply.
#[derive(Debug, Serialize)]
pub struct Chunk<'a> {
    #[serde(flatten)]
    head: &'a Head,
    object: &'static str,
    choices: Vec<ChunkChoice>,
    /// Absent unless asked for; then null in all chunks but the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<WireUsage>>,
}

#[derive(Debug, Serialize)]
struct ChunkChoice {
    index: u32,
    delta: Delta,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<WireLogprobs>,
    finish_reason: Option<&'static str>,
}

/// What a chunk adds.
#[derive(Debug, Default, Serialize)]
pub struct Delta {
    /// In the first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    /// A piece of the reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// A piece of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// A whole call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<[WireToolCall; 1]>,
}

impl<'a> Chunk<'a> {
    /// A chunk with a delta; the last of them gives the reason.
    pub fn delta(head: &'a Head, delta: Delta, finish_reason: Option<&'static str>, include_usage: bool) -> Self {
        let choices = vec![ChunkChoice { index: 0, delta, logprobs: None, finish_reason }];
        Self { object: "chat.completion.chunk", head, choices, usage: include_usage.then_some(None) }
    }

    /// The same with the log-probabilities of the tokens that its content begins.
    pub fn with_logprobs(mut self, tokens: Vec<TokenLogprobs>) -> Self {
        self.choices.iter_mut().for_each(|choice| choice.logprobs = Some(WireLogprobs::new(tokens.clone())));
        self
    }

    /// The chunk after the last delta.
    pub fn usage(head: &'a Head, usage: Usage) -> Self {
        Self { object: "chat.completion.chunk", head, choices: vec![], usage: Some(Some(usage.into())) }
    }
}

/// Log-probabilities of the content's tokens. Those of the reasoning and of calls are not among them.
#[derive(Debug, Serialize)]
struct WireLogprobs {
    content: Vec<WireToken>,
    /// Lily's models have no refusals of their own.
    refusal: Option<()>,
}

#[derive(Debug, Serialize)]
struct WireToken {
    #[serde(flatten)]
    token: WireLogprob,
    top_logprobs: Vec<WireLogprob>,
}

#[derive(Debug, Serialize)]
struct WireLogprob {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

impl WireLogprobs {
    fn new(tokens: Vec<TokenLogprobs>) -> Self {
        let token = |t: TokenLogprobs| WireToken {
            token: t.token.into(),
            top_logprobs: t.top.into_iter().map(WireLogprob::from).collect(),
        };
        Self { content: tokens.into_iter().map(token).collect(), refusal: None }
    }
}

impl From<Logprob> for WireLogprob {
    fn from(token: Logprob) -> Self {
        let text = String::from_utf8_lossy(&token.bytes).into_owned();
        Self { token: text, logprob: token.logprob, bytes: token.bytes }
    }
}

/// A call of the model's.
#[derive(Debug, Serialize)]
pub struct WireToolCall {
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    id: String,
    r#type: &'static str,
    function: WireFunction,
}

#[derive(Debug, Serialize)]
struct WireFunction {
    name: String,
    /// JSON text.
    arguments: String,
}

impl WireToolCall {
    /// A call with an id of its own.
    pub fn new(call: &ToolCall) -> Self {
        let function =
            WireFunction { name: call.name.clone(), arguments: Value::Object(call.arguments.clone()).to_string() };
        Self { index: None, id: random_id("call_"), r#type: "function", function }
    }

    /// The same with its place, as a delta has it.
    pub fn at(self, index: usize) -> Self {
        Self { index: Some(index), ..self }
    }
}

/// A prefix and 106 random bits.
pub fn random_id(prefix: &str) -> String {
    format!("{prefix}{:014x}{:014x}", crate::random_seed(), crate::random_seed())
}

/// Token counts.
#[derive(Debug, Serialize)]
pub struct WireUsage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptTokensDetails,
}

#[derive(Debug, Serialize)]
struct PromptTokensDetails {
    cached_tokens: usize,
}

impl From<Usage> for WireUsage {
    fn from(usage: Usage) -> Self {
        Self {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            total_tokens: usage.prompt_tokens + usage.completion_tokens,
            prompt_tokens_details: PromptTokensDetails { cached_tokens: usage.cached_tokens },
        }
    }
}

/// OpenAI's word. A cancelled completion has no reader; those few that a shutdown cancels are errors.
pub fn finish_reason(reason: FinishReason, has_calls: bool) -> &'static str {
    match reason {
        FinishReason::Stop if has_calls => "tool_calls",
        FinishReason::Stop | FinishReason::Cancelled => "stop",
        FinishReason::Length => "length",
    }
}
