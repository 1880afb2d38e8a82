//! Text to tokens and back, in the words that vLLM uses.

use lily_engine::request::{ChatPrompt, Prompt};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::completions::token_ids;
use super::fields::Fields;
use super::messages::messages;
use super::reply::to_value;
use super::thinking::thinking;
use super::tools::tools;
use crate::serve::error::ApiError;

/// A text as it stands, or a conversation as the template writes it.
#[derive(Debug)]
pub struct TokenizeRequest {
    /// Either.
    pub prompt: Prompt,
}

impl TokenizeRequest {
    /// Reads a request body.
    ///
    /// # Errors
    /// 400, naming the first field that is wrong or unknown.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(body)?;
        fields.take::<String>("model")?;
        let prompt = match fields.take::<String>("prompt")? {
            Some(text) => Prompt::Raw(text),
            None => {
                let messages = messages(&mut fields)?;
                let tools = tools(&mut fields)?.tools;
                let thinking = thinking(&mut fields)?;
                Prompt::Chat(ChatPrompt {
                    messages,
                    tools,
                    enable_thinking: thinking.enabled,
                    template_kwargs: thinking.template_kwargs,
                })
            }
        };
        fields.finish()?;
        Ok(Self { prompt })
    }
}

/// Ids.
#[derive(Debug, Serialize, ToSchema)]
pub struct Tokens {
    /// How many.
    pub count: usize,
    /// The ids.
    pub tokens: Vec<u32>,
    /// Positions that the context has.
    pub max_model_len: usize,
}

impl Tokens {
    /// As JSON.
    ///
    /// # Errors
    /// As `to_value`.
    pub fn json(&self) -> Result<Value, ApiError> {
        to_value(self)
    }
}

/// Ids to be spelled.
#[derive(Debug)]
pub struct DetokenizeRequest {
    /// The ids.
    pub tokens: Vec<u32>,
}

impl DetokenizeRequest {
    /// Reads a request body.
    ///
    /// # Errors
    /// 400, naming the first field that is wrong or unknown.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(body)?;
        fields.take::<String>("model")?;
        let items: Vec<Value> = fields.required("tokens")?;
        let tokens = token_ids(&fields, "tokens", &items)?;
        fields.finish()?;
        Ok(Self { tokens })
    }
}
