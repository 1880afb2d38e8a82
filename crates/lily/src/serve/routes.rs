//! The routes: which address does what. Parses by `wire`, runs by `generation`, replies by `wire` or `sse`.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router, middleware};
use lily_engine::engine::ModelInfo;
use lily_engine::prepare::Preparer;
use lily_engine::request::{Prompt, Request, SamplingParams};
use lily_engine::schedule::EngineThread;
use serde_json::{Value, json};

use super::error::ApiError;
use super::generation::{Generation, Update};
use super::guard::{Hosts, guard};
use super::page;
use super::sse::{ChatStream, Extras};
use super::wire::{ChatCompletion, ChatRequest, Head, random_id};

/// A long context, escaped, with room to spare.
const BODY_LIMIT_BYTES: usize = 32 << 20;

/// What the handlers share.
pub struct Server {
    /// The queue in front of the engine.
    pub engine: EngineThread,
    /// Makes requests ready for it.
    pub preparer: Arc<Preparer>,
    /// The one model.
    pub model: ModelInfo,
    /// Its sampling parameters, for fields that a request leaves out.
    pub defaults: SamplingParams,
    /// When it was loaded, Unix seconds.
    pub created: u64,
    /// How often a quiet stream sends a comment.
    pub keep_alive: Duration,
    /// How long a stream may wait for the engine's first word, so that errors still get a status of their own.
    pub first_word: Duration,
}

/// All routes, guarded.
pub fn router(server: Arc<Server>, hosts: Hosts) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat_completions))
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(model))
        .route("/health", get(health))
        .merge(page::routes())
        .fallback(async || ApiError::new(StatusCode::NOT_FOUND, "no such address").code("unknown_url"))
        .method_not_allowed_fallback(async || {
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "not with this method").code("method_not_allowed")
        })
        .layer(DefaultBodyLimit::max(BODY_LIMIT_BYTES))
        .layer(middleware::from_fn_with_state(Arc::new(hosts), guard))
        .with_state(server)
}

/// Unix time in seconds.
pub fn unix_time_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

async fn chat_completions(
    State(server): State<Arc<Server>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let body = body.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => {
            let message = format!("the body is larger than {BODY_LIMIT_BYTES} bytes");
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
        }
        _ => ApiError::new(StatusCode::BAD_REQUEST, "the body could not be read"),
    })?;
    let asked = ChatRequest::parse(&body)?;
    let model = &server.model.name;
    if let Some(other) = asked.model.filter(|asked| asked != model) {
        return Err(unknown_model(&other, model));
    }
    let request = asked.sampling.request(Prompt::Chat(asked.prompt), server.defaults, crate::random_seed());
    let request = Request { logprobs: asked.logprobs, ..request };
    let head = Head { id: random_id("chatcmpl-"), created: unix_time_s(), model: model.clone() };
    let mut generation = Generation::submit(&server, request).await?;
    if !asked.stream {
        return Ok(Json(ChatCompletion::new(head, generation.completion().await?)).into_response());
    }
    let first = match tokio::time::timeout(server.first_word, generation.next()).await {
        Err(_still_waiting) => None,
        Ok(Update::Done(result)) => Some(Update::Done(Box::new(Ok((*result)?)))),
        Ok(event) => Some(event),
    };
    let extras = Extras { usage: asked.include_usage, logprobs: asked.logprobs.is_some() };
    Ok(ChatStream::new(generation, head, extras, first).into_response(server.keep_alive))
}

fn unknown_model(asked: &str, served: &str) -> ApiError {
    let error = ApiError::field("model", format!("{asked:?} is not here; this server runs {served:?}"));
    ApiError { status: StatusCode::NOT_FOUND, ..error.code("model_not_found") }
}

async fn models(State(server): State<Arc<Server>>) -> Json<Value> {
    Json(json!({"object": "list", "data": [describe(&server)]}))
}

async fn model(
    State(server): State<Arc<Server>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let Path(id) = id.map_err(|_| ApiError::field("model", "the address is not UTF-8 text"))?;
    if id == server.model.name { Ok(Json(describe(&server))) } else { Err(unknown_model(&id, &server.model.name)) }
}

fn describe(server: &Server) -> Value {
    json!({
        "id": server.model.name,
        "object": "model",
        "created": server.created,
        "owned_by": "lily",
        "context_length": server.model.context_length,
    })
}

async fn health(State(server): State<Arc<Server>>) -> Response {
    if server.engine.is_alive() {
        Json(json!({"status": "ok"})).into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"status": "stopped"}))).into_response()
    }
}
