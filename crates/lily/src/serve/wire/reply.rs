//! What the replies of several APIs share: ids, token counts, reasons.

use axum::http::StatusCode;
use lily_engine::request::{Completion, FinishReason, Usage};
use serde::Serialize;
use utoipa::ToSchema;

use crate::serve::error::ApiError;

/// What all objects of one reply share.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Head {
    /// Of the reply; the same in all chunks.
    pub id: String,
    /// Unix time in seconds.
    pub created: u64,
    /// The model that answers.
    pub model: String,
}

impl Head {
    /// A new reply's, with an id that begins so.
    pub fn new(prefix: &str, model: &str) -> Self {
        Self { id: random_id(prefix), created: crate::serve::routes::unix_time_s(), model: model.to_owned() }
    }
}

/// A prefix and 106 random bits.
pub fn random_id(prefix: &str) -> String {
    format!("{prefix}{:014x}{:014x}", crate::random_seed(), crate::random_seed())
}

/// Token counts.
#[derive(Debug, Serialize, ToSchema)]
pub struct WireUsage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptTokensDetails,
    completion_tokens_details: CompletionTokensDetails,
}

#[derive(Debug, Serialize, ToSchema)]
struct PromptTokensDetails {
    cached_tokens: usize,
}

#[derive(Debug, Serialize, ToSchema)]
struct CompletionTokensDetails {
    /// Tokens of thinking.
    reasoning_tokens: usize,
}

impl From<Usage> for WireUsage {
    fn from(usage: Usage) -> Self {
        Self {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            total_tokens: usage.prompt_tokens + usage.completion_tokens,
            prompt_tokens_details: PromptTokensDetails { cached_tokens: usage.cached_tokens },
            completion_tokens_details: CompletionTokensDetails { reasoning_tokens: usage.reasoning_tokens },
        }
    }
}

/// The counts of all choices together; each prompt counts once, as its first answer had it.
pub fn total_usage(completions: &[Completion], n: usize) -> Usage {
    let mut total = Usage::default();
    for first in completions.iter().step_by(n.max(1)) {
        total.prompt_tokens += first.usage.prompt_tokens;
        total.cached_tokens += first.usage.cached_tokens;
    }
    for usage in completions.iter().map(|completion| completion.usage) {
        total.completion_tokens += usage.completion_tokens;
        total.reasoning_tokens += usage.reasoning_tokens;
    }
    total
}

/// OpenAI's word. A cancelled completion has no reader; those few that a shutdown cancels are errors.
pub fn finish_reason(reason: FinishReason, has_calls: bool) -> &'static str {
    match reason {
        FinishReason::Stop if has_calls => "tool_calls",
        FinishReason::Stop | FinishReason::Cancelled => "stop",
        FinishReason::Length => "length",
    }
}

/// A reply as JSON.
///
/// # Errors
/// 500; plain structs with string keys always serialize.
pub fn to_value(reply: &impl Serialize) -> Result<serde_json::Value, ApiError> {
    // By its text: a value would widen f32 numbers, and have other digits than the same numbers in a stream.
    let text = serde_json::to_string(reply);
    text.and_then(|text| serde_json::from_str(&text))
        .map_err(|error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}
