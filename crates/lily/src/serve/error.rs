//! Errors in OpenAI's shape, `{"error": {message, type, param, code}}`, with their HTTP status.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use lily_engine::engine::EngineError;
use lily_engine::request::RequestError;
use lily_engine::schedule::{JobError, SubmitError};
use serde_json::{Value, json};

/// Seconds after which a client should try again when the queue is full.
const RETRY_AFTER_S: u16 = 2;

/// A refused or failed request.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// What is wrong, in a sentence.
    pub message: String,
    /// The field of the request that is wrong.
    pub param: Option<String>,
    /// OpenAI's code, where clients know one.
    pub code: Option<&'static str>,
}

impl ApiError {
    /// An error that no field is to blame for.
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None, code: None }
    }

    /// A field that is wrong: 400.
    pub fn field(param: impl Into<String>, reason: impl std::fmt::Display) -> Self {
        let param = param.into();
        let message = format!("{param}: {reason}");
        Self { param: Some(param), ..Self::new(StatusCode::BAD_REQUEST, message) }
    }

    /// A field of another kind than it must be: 400.
    pub fn must_be(param: impl Into<String>, words: &str, found: &str) -> Self {
        let param = param.into();
        let message = format!("{param} must be {words}, not {found}");
        Self { param: Some(param), ..Self::new(StatusCode::BAD_REQUEST, message) }
    }

    /// The same with a code.
    pub fn code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    /// The body.
    pub fn body(&self) -> Value {
        let kind = if self.status.is_server_error() { "server_error" } else { "invalid_request_error" };
        json!({"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER_S));
        }
        response
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::QueueFull => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "too many requests wait; try again").code("queue_full")
            }
            SubmitError::Stopped => Self::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        }
    }
}

impl From<JobError> for ApiError {
    fn from(error: JobError) -> Self {
        match error {
            JobError::Engine(EngineError::Request(error)) => error.into(),
            JobError::Stopped => Self::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
            JobError::Engine(_) | JobError::Panicked(_) => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
            }
        }
    }
}

impl From<RequestError> for ApiError {
    fn from(error: RequestError) -> Self {
        let this = Self::new(StatusCode::BAD_REQUEST, error.to_string());
        let (param, code) = match error {
            RequestError::Field { field, .. } => (field, None),
            RequestError::Template(_) => ("messages", None),
            RequestError::TooLong { .. } => ("messages", Some("context_length_exceeded")),
        };
        Self { param: Some(param.into()), code, ..this }
    }
}
