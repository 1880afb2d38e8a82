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

/// How the next token is chosen. Order: bias (of the request), repetition penalty, frequency and presence penalty; then
/// the largest logit if the temperature is 0, else temperature, top-k, top-p, min-p, draw.
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
    /// Subtracted from the logit of every token that was generated, in [−2, 2].
    pub presence_penalty: f32,
    /// Subtracted from the logit of a token as often as it was generated, in [−2, 2].
    pub frequency_penalty: f32,
    /// Divides the logit of every token of the prompt and the answer if it is positive, multiplies it if not. Above 0;
    /// 1 changes nothing.
    pub repetition_penalty: f32,
    /// Seed of the counter-based generator. The same seed, prompt and parameters give the same text.
    pub seed: u64,
}

impl SamplingParams {
    /// Arg max at every step.
    pub const GREEDY: Self = Self {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        repetition_penalty: 1.0,
        seed: 0,
    };
}

/// One generation.
#[derive(Debug, Clone)]
pub struct Request {
    /// What to continue.
    pub prompt: Prompt,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Added to the logits of these tokens, each in [−100, 100].
    pub logit_bias: Vec<(u32, f32)>,
    /// The content ends before the first of these, at most `MAX_STOPS`. Reasoning and calls are not looked at, and none
    /// reaches over a call.
    pub stop: Vec<String>,
    /// Tell the log-probability of each generated token and of this many of the likeliest, at most `MAX_LOGPROBS`.
    pub logprobs: Option<usize>,
    /// Upper bound on generated tokens; `None` runs to the end of the context.
    pub max_tokens: Option<usize>,
    /// Most tokens inside the think block; then it is closed for the model. `None` lets it think.
    pub thinking_budget: Option<usize>,
    /// What the content must be, enforced token by token after the think block. Beside tools that the model may call, it
    /// holds where it calls none.
    pub response_format: ResponseFormat,
    /// Whether the answer must call tools, enforced likewise.
    pub tool_choice: ToolChoice,
    /// Whether one answer may hold several calls; counts where calls are enforced.
    pub parallel_tool_calls: bool,
    /// Tell the log-probability of each token of the prompt but the first, and of this many of the likeliest. Nothing
    /// of the prompt is then taken from earlier turns.
    pub prompt_logprobs: Option<usize>,
    /// Go on past stop ids (for measurements).
    pub ignore_eos: bool,
}

/// What the content of an answer must be.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum ResponseFormat {
    /// Whatever the model says.
    #[default]
    Text,
    /// The text of a JSON object.
    JsonObject,
    /// The text of a JSON value that the schema allows.
    JsonSchema(Value),
}

/// Whether an answer calls tools. To forbid it, show the model none. Enforced arguments come in the order of the schema's
/// `properties`, and there are none beside these, whatever `additionalProperties` says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// As the model likes; the arguments of tools marked `strict` obey their schema.
    #[default]
    Auto,
    /// At least one call of any tool.
    Required,
    /// A call of this tool.
    Named(String),
}

/// Most stop strings of a request.
pub const MAX_STOPS: usize = 16;

/// Most tokens whose log-probabilities are told beside the chosen one's.
pub const MAX_LOGPROBS: usize = 20;

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
    /// If the request asks for them: the tokens of the piece of the answer that comes next. A token that lies in two
    /// pieces comes with the first.
    Logprobs(Vec<TokenLogprobs>),
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

/// A token and the natural logarithm of its probability.
#[derive(Debug, Clone, PartialEq)]
pub struct Logprob {
    /// Id.
    pub id: u32,
    /// The token's text; not always whole characters.
    pub bytes: Vec<u8>,
    /// In the model's own distribution, before bias, penalties, temperature and filters; −9999 for anything below.
    pub logprob: f32,
}

/// How likely a generated token was.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// The token.
    pub token: Logprob,
    /// The likeliest tokens, likeliest first, equal ones by id: as many as were asked for.
    pub top: Vec<Logprob>,
    /// Whether any of its text is in the content: not so in reasoning, tool calls, tags, and what a stop string cut off.
    pub in_content: bool,
}

/// Why generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop id or a stop string was produced.
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
    /// Those of them inside the think block, its end included.
    pub reasoning_tokens: usize,
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
    /// Generated ids, the stop id included if one was produced; with a stop string, those that it took to be sure.
    pub tokens: Vec<u32>,
    /// One for each of `tokens`, if the request asks for them.
    pub logprobs: Option<Vec<TokenLogprobs>>,
    /// One for each token of the prompt but the first, if the request asks for them.
    pub prompt_logprobs: Option<Vec<TokenLogprobs>>,
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
    /// The caller left before the request was ready.
    #[error("cancelled")]
    Cancelled,
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
    /// A request with nothing but a prompt and how to sample.
    pub fn new(prompt: Prompt, sampling: SamplingParams) -> Self {
        Self {
            prompt,
            sampling,
            logit_bias: Vec::new(),
            stop: Vec::new(),
            logprobs: None,
            max_tokens: None,
            thinking_budget: None,
            response_format: ResponseFormat::Text,
            tool_choice: ToolChoice::Auto,
            parallel_tool_calls: true,
            prompt_logprobs: None,
            ignore_eos: false,
        }
    }

    /// Checks ranges.
    ///
    /// # Errors
    /// Names the first field out of its range.
    pub fn validate(&self) -> Result<(), RequestError> {
        self.sampling.validate()?;
        if self.max_tokens == Some(0) && self.prompt_logprobs.is_none() {
            return field("max_tokens", "0 is not a positive number");
        }
        if let Some((id, bias)) = self.logit_bias.iter().find(|(_, bias)| !(-100.0..=100.0).contains(bias)) {
            return field("logit_bias", format!("{bias} for id {id} is not in [-100, 100]"));
        }
        let mut ids: Vec<u32> = self.logit_bias.iter().map(|(id, _)| *id).collect();
        ids.sort_unstable();
        if let Some(pair) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
            return field("logit_bias", format!("id {} is there twice", pair[0]));
        }
        if self.stop.len() > MAX_STOPS {
            return field("stop", format!("{} strings are more than {MAX_STOPS}", self.stop.len()));
        }
        if self.stop.iter().any(String::is_empty) {
            return field("stop", "an empty string ends every answer before it begins");
        }
        match self.logprobs.max(self.prompt_logprobs) {
            Some(count) if count > MAX_LOGPROBS => {
                field("top_logprobs", format!("{count} is more than {MAX_LOGPROBS}"))
            }
            Some(_) | None => Ok(()),
        }
    }
}

impl SamplingParams {
    fn validate(&self) -> Result<(), RequestError> {
        let finite = "is not a finite number";
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            return field("temperature", format!("{} {finite} ≥ 0", self.temperature));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return field("top_p", format!("{} is not in (0, 1]", self.top_p));
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return field("min_p", format!("{} is not in [0, 1]", self.min_p));
        }
        for (name, penalty) in
            [("presence_penalty", self.presence_penalty), ("frequency_penalty", self.frequency_penalty)]
        {
            if !(-2.0..=2.0).contains(&penalty) {
                return field(name, format!("{penalty} is not in [-2, 2]"));
            }
        }
        if !(self.repetition_penalty > 0.0 && self.repetition_penalty.is_finite()) {
            return field("repetition_penalty", format!("{} {finite} > 0", self.repetition_penalty));
        }
        Ok(())
    }
}

fn field(field: &'static str, reason: impl Into<String>) -> Result<(), RequestError> {
    Err(RequestError::Field { field, reason: reason.into() })
}
