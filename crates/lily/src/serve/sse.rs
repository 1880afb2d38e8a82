//! Answers as server-sent events, in the words of one API. Headers and keep-alive comments go out by the wall clock,
//! however long the prompt takes.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use lily_engine::request::{Completion, Event};
use serde::Serialize;
use serde_json::Value;

use super::error::ApiError;
use super::generation::{Answers, Ended, Update, uncut};

/// Events that wait to be sent.
#[derive(Debug, Default)]
pub struct Frames(VecDeque<sse::Event>);

impl Frames {
    /// An event that is only data, as OpenAI's older APIs have it.
    pub fn data(&mut self, object: &impl Serialize) {
        self.0.push_back(sse::Event::default().data(json_text(object)));
    }

    /// An event with a name.
    pub fn named(&mut self, name: &str, object: &impl Serialize) {
        self.0.push_back(sse::Event::default().event(name).data(json_text(object)));
    }

    /// The word with which OpenAI's older APIs end a stream.
    pub fn done(&mut self) {
        self.0.push_back(sse::Event::default().data("[DONE]"));
    }
}

/// How one API says an answer, whole and in pieces. The pieces add up to the whole.
pub trait Reply: Send + Unpin + 'static {
    /// What stands before the first piece. `prompts` has the ids of each choice's prompt.
    fn begin(&mut self, prompts: &[Vec<u32>], frames: &mut Frames);

    /// A piece of a choice.
    fn event(&mut self, choice: usize, event: Event, frames: &mut Frames);

    /// A choice has ended.
    fn end(&mut self, choice: usize, completion: &Completion, frames: &mut Frames);

    /// All have; nothing follows.
    fn finish(&mut self, completions: &[Completion], frames: &mut Frames);

    /// It went wrong; nothing follows.
    fn fail(&mut self, error: &ApiError, frames: &mut Frames);

    /// The whole reply. `prompts` as for `begin`.
    ///
    /// # Errors
    /// The engine did not tell what was asked.
    fn whole(self, prompts: &[Vec<u32>], completions: Vec<Completion>) -> Result<Value, ApiError>;

    /// What keeps a quiet stream alive.
    fn keep_alive() -> KeepAlive {
        KeepAlive::new()
    }
}

/// The stream of one reply.
pub struct ReplyStream<R> {
    /// None once all is said.
    answers: Option<Answers>,
    reply: R,
    ended: Ended,
    frames: Frames,
}

impl<R: Reply> ReplyStream<R> {
    /// A stream from the beginning; `first` is what was taken from the answers already.
    pub fn new(answers: Answers, mut reply: R, first: Option<(usize, Update)>) -> Self {
        let mut frames = Frames::default();
        reply.begin(answers.prompts(), &mut frames);
        let ended = Ended::new(answers.prompts().len());
        let mut this = Self { answers: Some(answers), reply, ended, frames };
        if let Some((choice, update)) = first {
            this.update(choice, update);
        }
        this
    }

    /// The response, with a comment whenever nothing was sent for `keep_alive`.
    pub fn into_response(self, keep_alive: Duration) -> Response {
        let sse = Sse::new(self).keep_alive(R::keep_alive().interval(keep_alive));
        let mut response = sse.into_response();
        // Proxies that buffer would hold back what streaming is for.
        response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        response
    }

    fn update(&mut self, choice: usize, update: Update) {
        match update {
            Update::Event(event) => self.reply.event(choice, event, &mut self.frames),
            Update::Done(result) => match uncut(*result) {
                Ok(completion) => {
                    self.reply.end(choice, &completion, &mut self.frames);
                    if let Some(all) = self.ended.put(choice, completion) {
                        self.reply.finish(&all, &mut self.frames);
                        self.answers = None;
                    }
                }
                Err(error) => {
                    self.reply.fail(&error, &mut self.frames);
                    self.answers = None;
                }
            },
        }
    }
}

impl<R: Reply> Stream for ReplyStream<R> {
    type Item = Result<sse::Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(frame) = self.frames.0.pop_front() {
                return Poll::Ready(Some(Ok(frame)));
            }
            let Some(answers) = &mut self.answers else { return Poll::Ready(None) };
            let (choice, update) = ready!(answers.poll_next(context));
            self.update(choice, update);
        }
    }
}

fn json_text(object: &impl Serialize) -> String {
    // Plain structs with string keys always serialize; should one not, the client hears of it.
    let broken = |error: serde_json::Error| {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).body().to_string()
    };
    serde_json::to_string(object).unwrap_or_else(broken)
}
