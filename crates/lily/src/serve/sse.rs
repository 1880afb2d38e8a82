//! A generation as server-sent events: role, deltas, finish reason, usage if asked for, `[DONE]`. Headers and
//! keep-alive comments go out by the wall clock, however long the prompt takes.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::http::{HeaderValue, header};
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use lily_engine::request::{Completion, Event, TokenLogprobs};
use lily_engine::schedule::JobError;
use serde::Serialize;

use super::error::ApiError;
use super::generation::{Generation, Update, uncut};
use super::wire::{Chunk, Delta, Head, WireToolCall, finish_reason};

/// What a stream says beside the answer.
#[derive(Debug, Clone, Copy)]
pub struct Extras {
    /// A last chunk with token counts.
    pub usage: bool,
    /// Log-probabilities of the content's tokens.
    pub logprobs: bool,
}

/// The stream of one reply.
pub struct ChatStream {
    /// None once all is said.
    generation: Option<Generation>,
    head: Head,
    include_usage: bool,
    calls: usize,
    /// Tokens of the next piece of content.
    logprobs: Vec<TokenLogprobs>,
    frames: VecDeque<sse::Event>,
}

impl ChatStream {
    /// A stream that begins with the role; `first` is what was taken from the generation already.
    pub fn new(generation: Generation, head: Head, extras: Extras, first: Option<Update>) -> Self {
        let mut this = Self {
            generation: Some(generation),
            head,
            include_usage: extras.usage,
            calls: 0,
            logprobs: Vec::new(),
            frames: VecDeque::new(),
        };
        // With logprobs, none of them yet: a content without tokens then has the list that it has in a whole reply.
        let none = extras.logprobs.then(Vec::new);
        this.push(Delta { role: Some("assistant"), ..Delta::default() }, none, None);
        if let Some(update) = first {
            this.update(update);
        }
        this
    }

    /// The response, with a comment whenever nothing was sent for `keep_alive`.
    pub fn into_response(self, keep_alive: Duration) -> Response {
        let sse = Sse::new(self).keep_alive(KeepAlive::new().interval(keep_alive));
        let mut response = sse.into_response();
        // Proxies that buffer would hold back what streaming is for.
        response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        response
    }

    fn update(&mut self, update: Update) {
        match update {
            Update::Event(event) => self.event(event),
            Update::Done(result) => self.done(*result),
        }
    }

    fn event(&mut self, event: Event) {
        let delta = match event {
            Event::Start { .. } | Event::Prefill { .. } => return,
            Event::Logprobs(tokens) => {
                self.logprobs = tokens;
                return;
            }
            Event::Reasoning(text) => Delta { reasoning_content: Some(text), ..Delta::default() },
            Event::Content(text) => Delta { content: Some(text), ..Delta::default() },
            Event::ToolCall(call) => {
                let call = WireToolCall::new(&call).at(self.calls);
                self.calls += 1;
                Delta { tool_calls: Some([call]), ..Delta::default() }
            }
        };
        self.delta(delta, None);
    }

    fn done(&mut self, result: Result<Completion, JobError>) {
        match uncut(result) {
            Ok(completion) => {
                let reason = finish_reason(completion.finish_reason, self.calls > 0);
                self.delta(Delta::default(), Some(reason));
                if self.include_usage {
                    let frame = data(&Chunk::usage(&self.head, completion.usage));
                    self.frames.push_back(frame);
                }
            }
            Err(error) => self.frames.push_back(data(&error.body())),
        }
        self.frames.push_back(sse::Event::default().data("[DONE]"));
        self.generation = None;
    }

    fn delta(&mut self, delta: Delta, finish_reason: Option<&'static str>) {
        let tokens = if delta.content.is_some() { std::mem::take(&mut self.logprobs) } else { Vec::new() };
        self.push(delta, Some(tokens).filter(|tokens| !tokens.is_empty()), finish_reason);
    }

    fn push(&mut self, delta: Delta, tokens: Option<Vec<TokenLogprobs>>, finish_reason: Option<&'static str>) {
        let mut chunk = Chunk::delta(&self.head, delta, finish_reason, self.include_usage);
        if let Some(tokens) = tokens {
            chunk = chunk.with_logprobs(tokens);
        }
        let frame = data(&chunk);
        self.frames.push_back(frame);
    }
}

impl Stream for ChatStream {
    type Item = Result<sse::Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(frame) = self.frames.pop_front() {
                return Poll::Ready(Some(Ok(frame)));
            }
            let Some(generation) = &mut self.generation else { return Poll::Ready(None) };
            let update = ready!(generation.updates.poll_recv(context)).unwrap_or_else(Update::lost);
            self.update(update);
        }
    }
}

fn data(object: &impl Serialize) -> sse::Event {
    // Plain structs with string keys always serialize; should one not, the client hears of it.
    let broken = |error: serde_json::Error| {
        ApiError::new(axum::http::StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).body().to_string()
    };
    sse::Event::default().data(serde_json::to_string(object).unwrap_or_else(broken))
}
