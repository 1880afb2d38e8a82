//! One request to an API: its body, read within limits, and the answer in the words of that API.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use tokio::sync::OwnedSemaphorePermit;

use super::error::ApiError;
use super::generation::{Answers, Update};
use super::listen::until;
use super::observe::Record;
use super::routes::Server;
use super::sse::{Reply, ReplyStream};
use super::wire::Ask;

/// A long context, escaped, with room to spare.
pub const BODY_LIMIT_BYTES: usize = 32 << 20;
/// For a whole body to arrive.
const BODY_TIME: Duration = Duration::from_secs(60);
/// Larger bodies are read beside the threads that hold the sockets.
const SMALL_BYTES: usize = 64 << 10;
/// Larger bodies are made ready in a place of their own.
const LARGE_BYTES: usize = 1 << 20;

/// A request with its body.
pub struct Call {
    /// What the handlers share.
    pub server: Arc<Server>,
    /// What is told about it.
    pub record: Arc<Record>,
    body: Bytes,
}

impl FromRequest<Arc<Server>> for Call {
    type Rejection = ApiError;

    async fn from_request(request: Request, server: &Arc<Server>) -> Result<Self, ApiError> {
        let record = request.extensions().get::<Arc<Record>>().cloned();
        // The layer that opens records is around every route.
        let record =
            record.ok_or_else(|| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "a request without a record"))?;
        let mut closing = server.closing.clone();
        let read = tokio::select! {
            read = tokio::time::timeout(BODY_TIME, Bytes::from_request(request, &())) => read,
            () = until(&mut closing) => return Err(ApiError::shutting_down()),
        };
        let Ok(read) = read else {
            let message = format!("the body did not arrive within {} seconds", BODY_TIME.as_secs());
            return Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, message));
        };
        let body = read.map_err(|rejection| match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => {
                let message = format!("the body is larger than {BODY_LIMIT_BYTES} bytes");
                ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
            }
            _ => ApiError::new(StatusCode::BAD_REQUEST, "the body could not be read"),
        })?;
        if server.log_prompts {
            record.body(&body);
        }
        Ok(Self { server: Arc::clone(server), record, body })
    }
}

impl Call {
    /// The name of the served model.
    pub fn model(&self) -> &str {
        &self.server.model.name
    }

    /// Waits for a place to make it ready.
    ///
    /// # Errors
    /// The server is closing.
    pub async fn place(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        let is_large = self.body.len() > LARGE_BYTES;
        let places = if is_large { &self.server.preparing_large } else { &self.server.preparing };
        Arc::clone(places).acquire_owned().await.map_err(|_closed| ApiError::shutting_down())
    }

    /// Reads the body.
    ///
    /// # Errors
    /// The parser's.
    pub async fn parse<T: Send + 'static>(&self, parse: fn(&[u8]) -> Result<T, ApiError>) -> Result<T, ApiError> {
        if self.body.len() <= SMALL_BYTES {
            return parse(&self.body);
        }
        let body = self.body.clone();
        let parsed = tokio::task::spawn_blocking(move || parse(&body)).await;
        parsed.map_err(|error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?
    }

    /// Runs what is asked and says it, whole or as a stream.
    ///
    /// # Errors
    /// As `Answers::submit`; of a stream only those that are known at once.
    pub async fn answer(&self, ask: Ask, reply: impl Reply) -> Result<Response, ApiError> {
        let server = &self.server;
        let stream = ask.stream;
        let mut answers = Answers::submit(self, ask).await?;
        if !stream {
            let prompts = answers.prompts().to_vec();
            let completions = answers.completions().await?;
            return Ok(Json(reply.whole(&prompts, completions)?).into_response());
        }
        // A moment's patience, so that errors of the engine still get a status of their own.
        let first = match tokio::time::timeout(server.first_word, answers.next()).await {
            Err(_still_waiting) => None,
            Ok((choice, Update::Done(result))) => Some((choice, Update::Done(Box::new(Ok((*result)?))))),
            Ok(event) => Some(event),
        };
        Ok(ReplyStream::new(answers, reply, first).into_response(server.keep_alive))
    }
}
