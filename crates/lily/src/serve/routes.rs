//! The routes: which address does what. Parses by `wire`, runs by `call`, replies by `wire`.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::rejection::PathRejection;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router, middleware};
use lily_engine::engine::ModelInfo;
use lily_engine::prepare::Preparer;
use lily_engine::request::SamplingParams;
use lily_engine::schedule::EngineThread;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, watch};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::request_id::{PropagateRequestIdLayer, SetRequestIdLayer};

use super::call::{BODY_LIMIT_BYTES, Call};
use super::document;
use super::error::{ApiError, in_its_words};
use super::guard::{Guard, guard};
use super::metrics::Metrics;
use super::observe::{Ids, drop_long_id, observe};
use super::page;
use super::wire::{
    AnthropicMessage, ChatCompletion, ChatReply, ChatRequest, CompletionReply, CompletionRequest, MessageReply,
    MessagesRequest, ResponseReply, ResponsesRequest, TextCompletion,
};

/// Requests that are tokenized at the same time; the cores are the engine's. Large ones have a place of their own, so that
/// they hold up no short question, and take memory once.
const PREPARING: usize = 2;
const PREPARING_LARGE: usize = 1;
/// Well under the shortest idle timeouts of clients and proxies.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// Long enough for the engine's first word, short enough not to look dead.
const FIRST_WORD: Duration = Duration::from_secs(1);

/// What the handlers share.
pub struct Server {
    /// The queue in front of the engine.
    pub engine: EngineThread,
    /// Makes requests ready for it.
    pub preparer: Arc<Preparer>,
    /// Places for those who do.
    pub preparing: Arc<Semaphore>,
    /// The same for large requests.
    pub preparing_large: Arc<Semaphore>,
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
    /// Numbers for monitors.
    pub metrics: Arc<Metrics>,
    /// Whether bodies are logged.
    pub log_prompts: bool,
    /// True once the server takes no more requests.
    pub closing: watch::Receiver<bool>,
}

impl Server {
    /// With the usual times.
    ///
    /// # Errors
    /// The metrics cannot be set up.
    pub fn new(
        engine: EngineThread,
        (model, defaults, preparer): (ModelInfo, SamplingParams, Arc<Preparer>),
        closing: watch::Receiver<bool>,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            engine,
            preparer,
            preparing: Arc::new(Semaphore::new(PREPARING)),
            preparing_large: Arc::new(Semaphore::new(PREPARING_LARGE)),
            model,
            defaults,
            created: unix_time_s(),
            keep_alive: KEEP_ALIVE,
            first_word: FIRST_WORD,
            metrics: Arc::new(Metrics::new()?),
            log_prompts: false,
            closing,
        })
    }

    /// Whether requests are taken.
    pub fn is_ready(&self) -> bool {
        self.engine.is_alive() && !*self.closing.borrow()
    }
}

/// All routes, guarded.
pub fn router(server: Arc<Server>, allowed: Guard) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat_completions))
        .route("/v1/completions", post(completions))
        .route("/v1/responses", post(responses))
        .route("/v1/messages", post(messages))
        .route("/v1/messages/count_tokens", post(super::tokens::count_tokens))
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(model))
        .route("/tokenize", post(super::tokens::tokenize))
        .route("/detokenize", post(super::tokens::detokenize))
        .route("/health", get(health))
        .route("/health/live", get(live))
        .route("/health/ready", get(ready))
        .route("/metrics", get(metrics))
        .merge(page::routes())
        .route("/openapi.json", get(document::openapi))
        .route("/docs", get(document::docs))
        .fallback(async || ApiError::new(StatusCode::NOT_FOUND, "no such address").code("unknown_url"))
        .method_not_allowed_fallback(async || {
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "not with this method").code("method_not_allowed")
        })
        .layer(DefaultBodyLimit::max(BODY_LIMIT_BYTES))
        .layer(CatchPanicLayer::custom(|_| {
            ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "the server failed on this request").into_response()
        }))
        .layer(middleware::from_fn_with_state(Arc::new(allowed), guard))
        .layer(middleware::from_fn_with_state(Arc::clone(&server), observe))
        .layer(middleware::from_fn(in_its_words))
        .layer(PropagateRequestIdLayer::x_request_id())
        .layer(SetRequestIdLayer::x_request_id(Ids))
        .layer(middleware::from_fn(drop_long_id))
        .with_state(server)
}

/// Unix time in seconds.
pub fn unix_time_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Continue a conversation
#[utoipa::path(post, path = "/v1/chat/completions", tag = "OpenAI", request_body = document::ChatBody, responses((status = 200, description = "The answer", content((ChatCompletion = "application/json"), (String = "text/event-stream"))), document::Refusals))]
pub async fn chat_completions(call: Call) -> Result<Response, ApiError> {
    let ChatRequest { ask, include_usage } = call.parse(ChatRequest::parse).await?;
    let reply = ChatReply::new(call.model(), ask.n, include_usage, ask.logprobs.is_some());
    call.answer(ask, reply).await
}

/// Continue texts or tokens as they stand
#[utoipa::path(post, path = "/v1/completions", tag = "OpenAI", request_body = document::CompletionBody, responses((status = 200, description = "The answer", content((TextCompletion = "application/json"), (String = "text/event-stream"))), document::Refusals))]
pub async fn completions(call: Call) -> Result<Response, ApiError> {
    let asked = call.parse(CompletionRequest::parse).await?;
    let reply = CompletionReply::new(call.model(), &asked, Arc::clone(&call.server.preparer));
    call.answer(asked.ask, reply).await.map_err(|error| error.renamed(&CompletionRequest::NAMES))
}

/// Continue a conversation of items
#[utoipa::path(post, path = "/v1/responses", tag = "OpenAI", request_body = document::ResponsesBody, responses((status = 200, description = "The answer", content((document::ResponseBody = "application/json"), (String = "text/event-stream"))), document::Refusals))]
pub async fn responses(call: Call) -> Result<Response, ApiError> {
    let ResponsesRequest { ask, repeated } = call.parse(ResponsesRequest::parse).await?;
    let reply = ResponseReply::new(call.model(), repeated);
    call.answer(ask, reply).await.map_err(|error| error.renamed(&ResponsesRequest::NAMES))
}

/// Continue a conversation in the form of Anthropic
#[utoipa::path(post, path = "/v1/messages", tag = "Anthropic", request_body = document::MessagesBody, responses((status = 200, description = "The answer", content((AnthropicMessage = "application/json"), (String = "text/event-stream"))), document::AnthropicRefusals))]
pub async fn messages(call: Call) -> Result<Response, ApiError> {
    let MessagesRequest { ask } = call.parse(MessagesRequest::parse).await?;
    let reply = MessageReply::new(call.model(), &ask.sampling.stop, Arc::clone(&call.server.preparer));
    call.answer(ask, reply).await.map_err(|error| error.renamed(&MessagesRequest::NAMES))
}

/// The served model, in a list
#[utoipa::path(get, path = "/v1/models", tag = "OpenAI", responses((status = 200, description = "The answer", body = document::ModelsBody), document::Strangers))]
pub async fn models(State(server): State<Arc<Server>>) -> Json<Value> {
    Json(json!({"object": "list", "data": [describe(&server)]}))
}

/// The served model
#[utoipa::path(get, path = "/v1/models/{id}", tag = "OpenAI", params(("id" = String, Path)), responses(
    (status = 200, description = "It", body = document::ModelBody),
    (status = 400, description = "The name is no text", body = document::ErrorBody),
    (status = 404, description = "Another model", body = document::ErrorBody),
    document::Strangers,
))]
pub async fn model(
    State(server): State<Arc<Server>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let Path(id) = id.map_err(|_| ApiError::field("model", "the address is not UTF-8 text"))?;
    if id == server.model.name {
        Ok(Json(describe(&server)))
    } else {
        Err(ApiError::unknown_model(&id, &server.model.name))
    }
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

/// Whether the process is up
#[utoipa::path(get, path = "/health/live", tag = "Health", responses((status = 200, description = "The answer", body = document::HealthBody), document::Strangers))]
pub async fn live() -> Json<Value> {
    Json(json!({"status": "ok"}))
}

/// As `/health/ready`
#[utoipa::path(get, path = "/health", tag = "Health", responses((status = 200, description = "The answer", body = document::HealthBody), (status = 503, description = "The engine has failed, or the server is shutting down", body = document::HealthBody), document::Strangers))]
pub async fn health(server: State<Arc<Server>>) -> Response {
    ready(server).await
}

/// Whether requests are taken
#[utoipa::path(get, path = "/health/ready", tag = "Health", responses((status = 200, description = "The answer", body = document::HealthBody), (status = 503, description = "The engine has failed, or the server is shutting down", body = document::HealthBody), document::Strangers))]
pub async fn ready(State(server): State<Arc<Server>>) -> Response {
    if server.is_ready() {
        Json(json!({"status": "ok"})).into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"status": "stopped"}))).into_response()
    }
}

/// Numbers for Prometheus
#[utoipa::path(get, path = "/metrics", tag = "Health", responses(
    (status = 200, description = "Prometheus' text format", content_type = "text/plain", body = String),
    document::Strangers,
))]
pub async fn metrics(State(server): State<Arc<Server>>) -> Response {
    let text = server.metrics.render(&server);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}
