//! OpenAI's chat request. A field is honoured or refused by name, never dropped in silence: `ChatRequest::parse`
//! takes what it knows, accepts the values in `NEUTRAL` that ask for what happens anyway and the two fields in
//! `NO_OPS`, and refuses the rest. `null` is the same as absent, as OpenAI has it.

use lily_engine::request::{ChatPrompt, Prompt};
use serde_json::json;

use super::ask::Ask;
use super::fields::{Fields, Neutral};
use super::messages::messages;
use super::sampling::{answers, sampling, stream_options};
use super::thinking::thinking;
use super::tools::{response_format, tools};
use crate::serve::error::ApiError;

/// Fields that name the caller or tag the request for the server's records, of which it keeps none, or that steer a
/// cache, which finds what it can by itself.
const NO_OPS: [&str; 5] = ["user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"];

/// Fields of features that are not here: name, what is accepted in words, and the test.
const NEUTRAL: [Neutral; 3] = [
    ("store", "false", |v| *v == false),
    ("service_tier", r#""auto" or "default""#, |v| *v == "auto" || *v == "default"),
    ("modalities", r#"["text"]"#, |v| *v == json!(["text"])),
];

/// A chat request, checked field by field; ranges are the engine's business.
#[derive(Debug)]
pub struct ChatRequest {
    /// What is asked.
    pub ask: Ask,
    /// A last chunk with the token counts.
    pub include_usage: bool,
}

impl ChatRequest {
    /// Reads a request body.
    ///
    /// # Errors
    /// 400, naming the first field that is wrong or unknown.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(body)?;
        let stream = fields.take("stream")?.unwrap_or(false);
        let include_usage = stream_options(&mut fields, stream)?;
        let messages = messages(&mut fields)?;
        let tools = tools(&mut fields)?;
        let thinking = thinking(&mut fields)?;
        let chat = ChatPrompt {
            messages,
            tools: tools.tools,
            enable_thinking: thinking.enabled,
            template_kwargs: thinking.template_kwargs,
        };
        let ask = Ask {
            model: fields.take("model")?,
            n: answers(&mut fields)?,
            sampling: limited(&mut fields)?,
            logprobs: logprobs(&mut fields)?,
            thinking_budget: thinking.budget,
            response_format: response_format(&mut fields)?,
            tool_choice: tools.choice,
            parallel_tool_calls: tools.parallel,
            stream,
            ..Ask::new(Prompt::Chat(chat))
        };
        fields.only(&NEUTRAL)?;
        fields.without_effect(&NO_OPS)?;
        fields.finish()?;
        Ok(Self { ask, include_usage })
    }
}

/// Sampling with the limit under both of its names.
fn limited(fields: &mut Fields) -> Result<crate::flags::SamplingFlags, ApiError> {
    let mut sampling = sampling(fields)?;
    if let Some(new) = fields.take::<usize>("max_completion_tokens")? {
        if let Some(old) = sampling.max_tokens.filter(|old| *old != new) {
            return Err(ApiError::field("max_completion_tokens", format!("{new}, but max_tokens is {old}")));
        }
        sampling.max_tokens = Some(new);
    }
    Ok(sampling)
}

/// `top_logprobs` counts only with `logprobs`.
fn logprobs(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let asked = fields.take::<bool>("logprobs")? == Some(true);
    match fields.take::<usize>("top_logprobs")? {
        Some(count) if count > 0 && !asked => Err(fields.error("top_logprobs", "allowed only with logprobs: true")),
        count => Ok(asked.then_some(count.unwrap_or(0))),
    }
}
