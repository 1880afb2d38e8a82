//! OpenAI's chat replies, whole and in chunks. The concatenation of a stream's deltas is the whole reply.

use lily_engine::request::{Completion, Event, Logprob, TokenLogprobs, ToolCall};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::reply::{Head, WireUsage, finish_reason, random_id, to_value, total_usage};
use crate::serve::error::ApiError;
use crate::serve::sse::{Frames, Reply};

/// A whole reply.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatCompletion {
    #[serde(flatten)]
    head: Head,
    /// `chat.completion`
    object: &'static str,
    choices: Vec<Choice>,
    usage: WireUsage,
}

#[derive(Debug, Serialize, ToSchema)]
struct Choice {
    index: usize,
    message: Message,
    logprobs: Option<WireLogprobs>,
    /// `stop`, `length` or `tool_calls`
    finish_reason: &'static str,
}

#[derive(Debug, Serialize, ToSchema)]
struct Message {
    /// `assistant`
    role: &'static str,
    /// Null if the answer is only calls.
    content: Option<String>,
    /// What the model thought before.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<WireToolCall>,
}

impl Choice {
    fn new(index: usize, completion: Completion) -> Self {
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
        Self { index, message, logprobs, finish_reason }
    }
}

/// One piece of a streamed reply.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatCompletionChunk {
    #[serde(flatten)]
    head: Head,
    /// `chat.completion.chunk`
    object: &'static str,
    /// One; none in the chunk of token counts.
    choices: Vec<ChunkChoice>,
    /// Absent unless asked for; then null in all chunks but the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<WireUsage>>,
}

#[derive(Debug, Serialize, ToSchema)]
struct ChunkChoice {
    index: usize,
    delta: Delta,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<WireLogprobs>,
    /// In the last chunk of a choice.
    finish_reason: Option<&'static str>,
}

/// What a chunk adds.
#[derive(Debug, Default, Serialize, ToSchema)]
struct Delta {
    /// In the first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    /// A piece of the reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    /// A piece of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    /// A whole call.
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<Vec<WireToolCall>>,
}

/// Answers a chat.
pub struct ChatReply {
    head: Head,
    n: usize,
    include_usage: bool,
    logprobs: bool,
    choices: Vec<Streamed>,
}

/// How far a choice's stream is.
#[derive(Debug, Default)]
struct Streamed {
    calls: usize,
    /// Tokens of the next piece of content.
    logprobs: Vec<TokenLogprobs>,
}

impl ChatReply {
    /// The reply to a request for `n` choices.
    pub fn new(model: &str, n: usize, include_usage: bool, logprobs: bool) -> Self {
        let choices = (0..n).map(|_| Streamed::default()).collect();
        Self { head: Head::new("chatcmpl-", model), n, include_usage, logprobs, choices }
    }

    fn chunk(&self, choices: Vec<ChunkChoice>, usage: Option<WireUsage>) -> ChatCompletionChunk {
        let usage = self.include_usage.then_some(usage);
        ChatCompletionChunk { head: self.head.clone(), object: "chat.completion.chunk", choices, usage }
    }

    fn delta(&self, index: usize, delta: Delta, tokens: Option<Vec<TokenLogprobs>>) -> ChatCompletionChunk {
        let logprobs = tokens.map(WireLogprobs::new);
        self.chunk(vec![ChunkChoice { index, delta, logprobs, finish_reason: None }], None)
    }
}

impl Reply for ChatReply {
    fn begin(&mut self, _prompts: &[Vec<u32>], frames: &mut Frames) {
        for index in 0..self.n {
            // With logprobs, none of them yet: a content without tokens then has the list that it has in a whole reply.
            let none = self.logprobs.then(Vec::new);
            frames.data(&self.delta(index, Delta { role: Some("assistant"), ..Delta::default() }, none));
        }
    }

    fn event(&mut self, choice: usize, event: Event, frames: &mut Frames) {
        let streamed = &mut self.choices[choice];
        let mut tokens = None;
        let delta = match event {
            Event::Start { .. } | Event::Prefill { .. } => return,
            Event::Logprobs(tokens) => {
                streamed.logprobs.extend(tokens);
                return;
            }
            Event::Reasoning(text) => Delta { reasoning_content: Some(text), ..Delta::default() },
            Event::Content(text) => {
                tokens = Some(std::mem::take(&mut streamed.logprobs)).filter(|tokens| !tokens.is_empty());
                Delta { content: Some(text), ..Delta::default() }
            }
            Event::ToolCall(call) => {
                let call = WireToolCall::new(&call).at(streamed.calls);
                streamed.calls += 1;
                Delta { tool_calls: Some(vec![call]), ..Delta::default() }
            }
        };
        frames.data(&self.delta(choice, delta, tokens));
    }

    fn end(&mut self, choice: usize, completion: &Completion, frames: &mut Frames) {
        let reason = finish_reason(completion.finish_reason, self.choices[choice].calls > 0);
        let last = ChunkChoice { index: choice, delta: Delta::default(), logprobs: None, finish_reason: Some(reason) };
        frames.data(&self.chunk(vec![last], None));
    }

    fn finish(&mut self, completions: &[Completion], frames: &mut Frames) {
        if self.include_usage {
            frames.data(&self.chunk(vec![], Some(total_usage(completions, self.n).into())));
        }
        frames.done();
    }

    fn fail(&mut self, error: &ApiError, frames: &mut Frames) {
        frames.data(&error.body());
        frames.done();
    }

    fn whole(self, _prompts: &[Vec<u32>], completions: Vec<Completion>) -> Result<Value, ApiError> {
        let usage = total_usage(&completions, self.n).into();
        let choices = completions.into_iter().enumerate().map(|(i, completion)| Choice::new(i, completion)).collect();
        to_value(&ChatCompletion { head: self.head, object: "chat.completion", choices, usage })
    }
}

/// Log-probabilities of the content's tokens. Those of the reasoning and of calls are not among them.
#[derive(Debug, Serialize, ToSchema)]
pub struct WireLogprobs {
    content: Vec<WireToken>,
    /// Lily's models have no refusals of their own.
    refusal: Option<()>,
}

#[derive(Debug, Serialize, ToSchema)]
struct WireToken {
    #[serde(flatten)]
    token: WireLogprob,
    top_logprobs: Vec<WireLogprob>,
}

#[derive(Debug, Serialize, ToSchema)]
struct WireLogprob {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

impl WireLogprobs {
    /// OpenAI's form of them.
    pub fn new(tokens: Vec<TokenLogprobs>) -> Self {
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
#[derive(Debug, Serialize, ToSchema)]
pub struct WireToolCall {
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    id: String,
    r#type: &'static str,
    function: WireFunction,
}

#[derive(Debug, Serialize, ToSchema)]
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
