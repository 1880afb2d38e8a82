//! Flow 1: what a caller asks and what comes back. Plain data; validated by `Request::validate` before
//! anything runs. Knows nothing of wire formats (those live in the binary's `serve/`).

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Map, Value};

/// What to continue.
#[derive(Debug, Clone)]
pub enum Prompt {
    /// Messages rendered through the checkpoint's chat template.
    Chat(ChatPrompt),
    /// Text tokenized as it stands; spelled control tokens become control tokens.
    Raw(String),
    /// Token ids, used as they stand.
    Tokens(Vec<u32>),
}

/// A conversation in OpenAI form, before rendering.
#[derive(Debug, Clone, Default)]
pub struct ChatPrompt {
    /// `{role, content, reasoning_content?, tool_calls?}` objects, oldest first.
    pub messages: Vec<Value>,
    /// OpenAI tool objects (`{type: function, function: {...}}`), passed to the template whole.
    pub tools: Vec<Value>,
    /// `enable_thinking`; `None` leaves it undefined, so the template's default holds.
    pub enable_thinking: Option<bool>,
    /// Further template variables (`preserve_thinking`, ...).
    pub template_kwargs: Map<String, Value>,
}

/// How the next token is chosen. Order: temperature, top-k, top-p, min-p, draw.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplingParams {
    /// 0 is greedy (arg max; ties go to the lowest id).
    pub temperature: f32,
    /// Keep the k most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set whose probability reaches p, in (0, 1].
    pub top_p: f32,
    /// Drop tokens less likely than `min_p` times the most likely one, in [0, 1].
    pub min_p: f32,
    /// Seed of the counter-based generator. The same seed, prompt and parameters give the same text.
    pub seed: u64,
}

impl SamplingParams {
    /// Arg max at every step.
    pub const GREEDY: Self = Self { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 };
}

/// One generation.
#[derive(Debug, Clone)]
pub struct Request {
    /// What to continue.
    pub prompt: Prompt,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Upper bound on generated tokens; `None` runs to the end of the context.
    pub max_tokens: Option<usize>,
    /// Go on past stop ids (for measurements).
    pub ignore_eos: bool,
}

/// What happens while a request runs, in order. The concatenation of all pieces is the `Completion`'s text.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The prompt was tokenized: its length, and how much of it a session already held.
    Start {
        /// Tokens of the whole prompt.
        prompt_tokens: usize,
        /// Tokens whose state was reused.
        cached_tokens: usize,
    },
    /// Prompt tokens computed so far (reused ones included).
    Prefill {
        /// Tokens done.
        done: usize,
        /// Tokens of the whole prompt.
        total: usize,
    },
    /// A piece of the model's reasoning (between `<think>` and `</think>`).
    Reasoning(String),
    /// A piece of the answer.
    Content(String),
    /// A complete, well-formed call of one of the request's tools. Malformed calls come as `Content`.
    ToolCall(ToolCall),
}

/// One call written by the model.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// Function name, one of the request's tools.
    pub name: String,
    /// Arguments; values converted by the tool's JSON schema.
    pub arguments: Map<String, Value>,
}

/// Why generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop id was produced.
    Stop,
    /// `max_tokens` or the context was reached.
    Length,
    /// The caller cancelled; what was computed is kept.
    Cancelled,
}

/// Token counts of a finished request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens whose state was reused from earlier turns.
    pub cached_tokens: usize,
    /// Tokens generated, the stop token included.
    pub completion_tokens: usize,
}

/// Wall-clock times of a finished request.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Timings {
    /// From the start of the request to the logits of the last prompt token.
    pub prefill_ms: f64,
    /// From the start of the request to the choice of the first token; 0 if the answer has none.
    pub first_token_ms: f64,
    /// From the end of the prefill to the end of the request.
    pub decode_ms: f64,
}

/// A finished (or cancelled) generation.
#[derive(Debug, Clone)]
pub struct Completion {
    /// Text after the reasoning, tool calls taken out.
    pub content: String,
    /// Text inside the think block, if there was any.
    pub reasoning: String,
    /// Calls in order.
    pub tool_calls: Vec<ToolCall>,
    /// Generated ids, the stop id included if one was produced.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Token counts.
    pub usage: Usage,
    /// Times.
    pub timings: Timings,
}

/// Takes events as they come; `Break` cancels the request within one step or prefill chunk.
pub type EventSink<'a> = dyn FnMut(Event) -> ControlFlow<()> + 'a;

/// Shared flag that cancels a running request from another thread or a signal handler.
#[derive(Debug, Clone, Default)]
pub struct CancelToken(Arc<AtomicBool>);

impl CancelToken {
    /// Asks the running request to end.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// The flag itself, for a device to look at in the middle of a step.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }

    /// Whether `cancel` was called.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A request that cannot run as asked: the caller's mistake (HTTP 400).
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum RequestError {
    /// A field is out of its range.
    #[error("{field}: {reason}")]
    Field {
        /// Name of the field as callers know it.
        field: &'static str,
        /// What is wrong, with the number given.
        reason: String,
    },
    /// The chat template refused the messages.
    #[error("messages: {0}")]
    Template(String),
    /// The prompt does not fit.
    #[error("the prompt has {prompt_tokens} tokens, the context {context_length}: shorten it, or raise --context")]
    TooLong {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Positions a session can hold.
        context_length: usize,
    },
}

impl Request {
    /// Checks ranges.
    ///
    /// # Errors
    /// Names the first field out of its range.
    pub fn validate(&self) -> Result<(), RequestError> {
        let s = &self.sampling;
        let field = |field, reason| Err(RequestError::Field { field, reason });
        if !(s.temperature >= 0.0 && s.temperature.is_finite()) {
            return field("temperature", format!("{} is not a finite number ≥ 0", s.temperature));
        }
        if !(s.top_p > 0.0 && s.top_p <= 1.0) {
            return field("top_p", format!("{} is not in (0, 1]", s.top_p));
        }
        if !(0.0..=1.0).contains(&s.min_p) {
            return field("min_p", format!("{} is not in [0, 1]", s.min_p));
        }
        if self.max_tokens == Some(0) {
            return field("max_tokens", "0 is not a positive number".into());
        }
        Ok(())
    }
}
