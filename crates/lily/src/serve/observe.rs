//! What is told about requests: one line in the log, the metrics, an id in and out. Counts and times only; prompts are
//! logged where the flags ask for it, and nowhere else.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::HeaderValue;
use axum::middleware::Next;
use axum::response::Response;
use lily_engine::request::{Completion, FinishReason};
use lily_engine::schedule::JobError;
use tower_http::request_id::{MakeRequestId, RequestId};

use super::listen::Busy;
use super::metrics::Metrics;
use super::routes::Server;
use super::wire::random_id;

/// One request, from its first byte to the end of its answer. The last to let it go writes the line.
#[derive(Debug)]
pub struct Record {
    id: String,
    route: String,
    began: Instant,
    metrics: Arc<Metrics>,
    told: Mutex<Told>,
    /// Keeps the connection open while the answer runs.
    _busy: Option<Busy>,
}

/// What became of it.
#[derive(Debug, Default)]
struct Told {
    /// None if the client left before there was one.
    status: Option<u16>,
    prompt_tokens: usize,
    cached_tokens: usize,
    completion_tokens: usize,
    prefill_ms: f64,
    decode_ms: f64,
    finish: Option<&'static str>,
}

impl Record {
    /// An answer has ended; called on the engine's thread.
    pub fn ended(&self, result: &Result<Completion, JobError>) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let Ok(completion) = result else {
            told.finish = Some("error");
            return;
        };
        let Completion { usage, timings, finish_reason, .. } = completion;
        told.prompt_tokens += usage.prompt_tokens;
        told.cached_tokens += usage.cached_tokens;
        told.completion_tokens += usage.completion_tokens;
        told.prefill_ms += timings.prefill_ms;
        told.decode_ms += timings.decode_ms;
        told.finish = Some(match finish_reason {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Cancelled => "cancelled",
        });
        self.metrics.completion(completion);
    }

    /// The body of a request, for the log.
    pub fn body(&self, body: &[u8]) {
        tracing::info!(id = self.id, body = %String::from_utf8_lossy(body), "prompt");
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let told = self.told.get_mut().unwrap_or_else(PoisonError::into_inner);
        let seconds = self.began.elapsed().as_secs_f64();
        let status = told.status.map_or_else(|| "-".to_owned(), |status| status.to_string());
        self.metrics.request(&self.route, &status, seconds);
        let (id, route, finish) = (&self.id, &self.route, told.finish.unwrap_or("-"));
        let Told { prompt_tokens, cached_tokens, completion_tokens, prefill_ms, decode_ms, .. } = *told;
        let [prefill_ms, decode_ms, total_ms] =
            [prefill_ms, decode_ms, seconds * 1e3].map(|ms| (ms * 10.0).round() / 10.0);
        if told.status.is_some_and(|status| status >= 500) {
            tracing::warn!(id, route, status, finish, total_ms, "request failed");
        } else {
            tracing::info!(
                id,
                route,
                status,
                finish,
                prompt_tokens,
                cached_tokens,
                completion_tokens,
                prefill_ms,
                decode_ms,
                total_ms,
                "request"
            );
        }
    }
}

/// Opens the record of a request, and hands it on to those who answer.
pub async fn observe(State(server): State<Arc<Server>>, mut request: Request, next: Next) -> Response {
    // What has no route shares a name: the addresses that people try have no end.
    let route = request.extensions().get::<MatchedPath>().map_or("other", MatchedPath::as_str).to_owned();
    let id = request.extensions().get::<RequestId>().and_then(|id| id.header_value().to_str().ok());
    let record = Arc::new(Record {
        id: id.unwrap_or_default().to_owned(),
        route,
        began: Instant::now(),
        metrics: Arc::clone(&server.metrics),
        told: Mutex::default(),
        _busy: request.extensions().get::<Busy>().cloned(),
    });
    request.extensions_mut().insert(Arc::clone(&record));
    let response = next.run(request).await;
    record.told.lock().unwrap_or_else(PoisonError::into_inner).status = Some(response.status().as_u16());
    response
}

/// An id is for finding lines in a log, not for filling it: a longer one counts as none.
pub async fn drop_long_id(mut request: Request, next: Next) -> Response {
    const MOST: usize = 128;
    let headers = request.headers_mut();
    let is_fit = |id: &HeaderValue| id.len() <= MOST && id.to_str().is_ok();
    if headers.get("x-request-id").is_some_and(|id| !is_fit(id)) {
        headers.remove("x-request-id");
    }
    next.run(request).await
}

/// Gives requests that bring no `x-request-id` one.
#[derive(Debug, Clone, Copy)]
pub struct Ids;

impl MakeRequestId for Ids {
    fn make_request_id<B>(&mut self, _request: &axum::http::Request<B>) -> Option<RequestId> {
        HeaderValue::from_str(&random_id("req_")).ok().map(RequestId::new)
    }
}
