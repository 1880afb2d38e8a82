//! `/tokenize` and `/detokenize`: what a text or a conversation is for the model.

use std::sync::Arc;

use axum::Json;
use axum::http::StatusCode;
use lily_engine::request::{Prompt, RequestError};
use serde_json::{Value, json};

use super::call::Call;
use super::document;
use super::error::ApiError;
use super::generation::CancelOnDrop;
use super::wire::{DetokenizeRequest, MessagesRequest, TokenizeRequest, Tokens};

/// Ids of a text or of a conversation.
#[utoipa::path(post, path = "/tokenize", tag = "Tokens", request_body = document::TokenizeBody, responses((status = 200, description = "The answer", body = Tokens), document::Refusals))]
pub async fn tokenize(call: Call) -> Result<Json<Value>, ApiError> {
    let TokenizeRequest { prompt } = call.parse(TokenizeRequest::parse).await?;
    let tokens = ids(&call, prompt).await?;
    let max_model_len = call.server.model.context_length;
    Ok(Json(Tokens { count: tokens.len(), tokens, max_model_len }.json()?))
}

/// How many tokens a message of Anthropic's would be.
#[utoipa::path(post, path = "/v1/messages/count_tokens", tag = "Anthropic", request_body = document::CountTokensBody, responses((status = 200, description = "The answer", body = document::CountBody), document::AnthropicRefusals))]
pub async fn count_tokens(call: Call) -> Result<Json<Value>, ApiError> {
    let MessagesRequest { mut ask } = call.parse(MessagesRequest::parse_count).await?;
    let prompt = ask.prompts.swap_remove(0);
    Ok(Json(json!({"input_tokens": ids(&call, prompt).await?.len()})))
}

/// Tokenizes beside the threads that hold the sockets, until the client leaves.
async fn ids(call: &Call, prompt: Prompt) -> Result<Vec<u32>, ApiError> {
    let server = &call.server;
    let cancel = CancelOnDrop::default();
    let permit = call.place().await?;
    let (preparer, token) = (Arc::clone(&server.preparer), cancel.0.clone());
    let tokens = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        preparer.codec().prompt_tokens_unless(&prompt, &token).map_err(RequestError::from)
    });
    let tokens = tokens.await.map_err(|e| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()))??;
    Ok(tokens.ids)
}

/// The text of ids, control tokens included.
#[utoipa::path(post, path = "/detokenize", tag = "Tokens", request_body = document::DetokenizeBody, responses((status = 200, description = "The answer", body = document::TextBody), document::Refusals))]
pub async fn detokenize(call: Call) -> Result<Json<Value>, ApiError> {
    let DetokenizeRequest { tokens } = call.parse(DetokenizeRequest::parse).await?;
    let tokenizer = call.server.preparer.codec().tokenizer();
    if let Some((i, id)) = tokens.iter().enumerate().find(|(_, id)| **id as usize >= tokenizer.vocab_size()) {
        let reason = format!("{id} is outside the vocabulary of {}", tokenizer.vocab_size());
        return Err(ApiError::field(format!("tokens[{i}]"), reason));
    }
    Ok(Json(json!({"prompt": tokenizer.decode(&tokens, false)})))
}
