//! Errors in OpenAI's shape, `{"error": {message, type, param, code}}`, with their HTTP status.

use axum::Json;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
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

    /// Another model than the served one: 404.
    pub fn unknown_model(asked: &str, served: &str) -> Self {
        let error = Self::field("model", format!("{asked:?} is not here; this server runs {served:?}"));
        Self { status: StatusCode::NOT_FOUND, ..error.code("model_not_found") }
    }

    /// The server takes no more requests: 503.
    pub fn shutting_down() -> Self {
        JobError::Stopped.into()
    }

    /// The same in the words of an API that has other names for the engine's fields.
    pub fn renamed(self, names: &[(&str, &str)]) -> Self {
        let Some(param) = &self.param else { return self };
        let Some((ours, theirs)) = names.iter().find(|(ours, _)| param == ours) else { return self };
        let message = match self.message.strip_prefix(ours) {
            Some(rest) => format!("{theirs}{rest}"),
            None => self.message,
        };
        Self { message, param: Some((*theirs).to_owned()), ..self }
    }

    /// The body in Anthropic's shape.
    pub fn anthropic_body(&self) -> Value {
        let kind = match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            status if status.is_server_error() => "api_error",
            _ => "invalid_request_error",
        };
        json!({"type": "error", "error": {"type": kind, "message": self.message}})
    }

    /// The body in OpenAI's shape.
    pub fn body(&self) -> Value {
        let kind = if self.status.is_server_error() { "server_error" } else { "invalid_request_error" };
        json!({"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        response.extensions_mut().insert(self.clone());
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER_S));
        }
        response
    }
}

/// Says errors in Anthropic's shape where its clients ask; everywhere else OpenAI's stands already.
pub async fn in_its_words(request: Request, next: Next) -> Response {
    let is_anthropics = request.uri().path().starts_with("/v1/messages");
    let response = next.run(request).await;
    let error = response.extensions().get::<ApiError>().filter(|_| is_anthropics);
    let Some(body) = error.map(ApiError::anthropic_body) else { return response };
    let (mut parts, _) = response.into_parts();
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(parts, Body::from(body.to_string()))
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
            // The schema is the caller's, though only the answer came to where it leaves no way on.
            JobError::Engine(EngineError::Grammar(error)) => Self::new(StatusCode::BAD_REQUEST, error.to_string()),
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
            // Nobody is there to read it.
            RequestError::Cancelled => return this,
            RequestError::TooLong { .. } => ("messages", Some("context_length_exceeded")),
        };
        Self { param: Some(param.into()), code, ..this }
    }
}
