//! One request on its way through the engine's thread: submitted, followed, and cancelled when its reader goes.

use std::ops::ControlFlow;
use std::sync::Arc;

use lily_engine::request::{CancelToken, Completion, Event, FinishReason, Request};
use lily_engine::schedule::{Job, JobError};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::error::ApiError;
use super::routes::Server;
use crate::terminal::note;

/// What the engine's thread sends.
#[derive(Debug)]
pub enum Update {
    /// Something happened.
    Event(Event),
    /// The last one.
    Done(Box<Result<Completion, JobError>>),
}

impl Update {
    /// The engine's thread went away without a word.
    pub fn lost() -> Self {
        Self::Done(Box::new(Err(JobError::Stopped)))
    }
}

/// A running or waiting request. Dropping it, as axum does when the client disconnects, cancels it.
#[derive(Debug)]
pub struct Generation {
    /// Never blocks the engine; a completion's length bounds what can pile up.
    pub updates: UnboundedReceiver<Update>,
    cancel: CancelToken,
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

impl Generation {
    /// Prepares a request, beside the threads that hold the sockets, and puts it into the engine's queue.
    ///
    /// # Errors
    /// 400 for a request that cannot run, 503 for a full queue, 500 for a dead engine.
    pub async fn submit(server: &Server, request: Request) -> Result<Self, ApiError> {
        let preparer = Arc::clone(&server.preparer);
        let prepared = tokio::task::spawn_blocking(move || preparer.prepare(request)).await;
        let prepared = prepared.map_err(|error| JobError::Panicked(error.to_string()))??;
        let (sender, updates) = unbounded_channel();
        let events = sender.clone();
        let cancel = CancelToken::default();
        let job = Job {
            prepared,
            cancel: cancel.clone(),
            sink: Box::new(move |event| match events.send(Update::Event(event)) {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }),
            done: Box::new(move |result| {
                log(&result);
                // A reader that has left needs no result.
                let _ = sender.send(Update::Done(Box::new(result)));
            }),
        };
        server.engine.submit(job)?;
        Ok(Self { updates, cancel })
    }

    /// The next update.
    pub async fn next(&mut self) -> Update {
        self.updates.recv().await.unwrap_or_else(Update::lost)
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// The engine's, or 503 if a shutdown cut the answer.
    pub async fn completion(mut self) -> Result<Completion, ApiError> {
        loop {
            match self.next().await {
                Update::Event(_) => {}
                Update::Done(result) => return uncut(*result),
            }
        }
    }
}

/// A cancelled completion whose reader is still here was cut by a shutdown: no answer to pass off as whole.
///
/// # Errors
/// The engine's, or 503 for such a completion.
pub fn uncut(result: Result<Completion, JobError>) -> Result<Completion, ApiError> {
    match result {
        Ok(completion) if completion.finish_reason == FinishReason::Cancelled => Err(JobError::Stopped.into()),
        Ok(completion) => Ok(completion),
        Err(error) => Err(error.into()),
    }
}

/// One line per request: counts and times, never text. Errors of requests may quote them, so these stay out.
fn log(result: &Result<Completion, JobError>) {
    match result {
        Ok(Completion { usage, timings, finish_reason, .. }) => note(format_args!(
            "chat: {} prompt tokens ({} cached) in {:.0} ms, {} generated in {:.0} ms, {finish_reason:?}",
            usage.prompt_tokens, usage.cached_tokens, timings.prefill_ms, usage.completion_tokens, timings.decode_ms
        )),
        Err(JobError::Engine(_)) => note("chat: failed or refused by the engine"),
        Err(error @ (JobError::Panicked(_) | JobError::Stopped)) => note(format_args!("chat: {error}")),
    }
}
