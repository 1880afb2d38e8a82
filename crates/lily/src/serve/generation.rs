//! The answers to one request on their way through the engine's thread: submitted, followed, and cancelled when their
//! reader goes. Every API comes through here; none of their formats does.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::{Context, Poll};

use lily_engine::prepare::Prepared;
use lily_engine::request::{CancelToken, Completion, Event, FinishReason};
use lily_engine::schedule::{Job, JobError};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::call::Call;
use super::error::ApiError;
use super::observe::Record;
use super::wire::Ask;

/// What the engine's thread sends.
#[derive(Debug)]
pub enum Update {
    /// Something happened.
    Event(Event),
    /// The last one.
    Done(Box<Result<Completion, JobError>>),
}

/// Running or waiting answers, one for each choice. Dropping them, as axum does when the client disconnects, cancels
/// them.
#[derive(Debug)]
pub struct Answers {
    /// Never blocks the engine; a completion's length bounds what can pile up.
    updates: UnboundedReceiver<(usize, Update)>,
    /// Ids of each choice's prompt.
    prompts: Vec<Vec<u32>>,
    _cancel: CancelOnDrop,
    /// Here too, so that its line is not written on the engine's thread.
    _record: Arc<Record>,
}

/// Cancels when it goes.
#[derive(Debug, Default)]
pub struct CancelOnDrop(pub CancelToken);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl Answers {
    /// Prepares a request, beside the threads that hold the sockets, and puts it into the engine's queue.
    ///
    /// # Errors
    /// 404 for another model, 400 for a request that cannot run, 503 for a full queue, 500 for a dead engine.
    pub async fn submit(call: &Call, ask: Ask) -> Result<Self, ApiError> {
        let Call { server, record, .. } = call;
        let served = &server.model.name;
        if let Some(other) = ask.model.as_ref().filter(|asked| *asked != served) {
            return Err(ApiError::unknown_model(other, served));
        }
        let (answers, most) = (ask.n * ask.prompts.len(), server.engine.capacity());
        if answers > most {
            // Waiting and trying again would not help.
            return Err(ApiError::field("prompt", format!("{answers} answers are more than the {most} of --queue")));
        }
        let cancel = CancelOnDrop::default();
        let prepared = prepare(call, ask, &cancel.0).await?;
        let prompts = prepared.iter().map(|prepared| prepared.ids().to_vec()).collect();
        let (sender, updates) = unbounded_channel();
        for (choice, prepared) in prepared.into_iter().enumerate() {
            server.engine.submit(job(choice, prepared, &cancel.0, &sender, record))?;
        }
        Ok(Self { updates, prompts, _cancel: cancel, _record: Arc::clone(record) })
    }

    /// Ids of each choice's prompt.
    pub fn prompts(&self) -> &[Vec<u32>] {
        &self.prompts
    }

    /// The next update, and which choice it belongs to.
    pub async fn next(&mut self) -> (usize, Update) {
        self.updates.recv().await.unwrap_or_else(lost)
    }

    /// As `next`, for a stream.
    pub fn poll_next(&mut self, context: &mut Context) -> Poll<(usize, Update)> {
        self.updates.poll_recv(context).map(|update| update.unwrap_or_else(lost))
    }

    /// Waits for the end of all.
    ///
    /// # Errors
    /// The first that failed, or 503 if a shutdown cut an answer.
    pub async fn completions(mut self) -> Result<Vec<Completion>, ApiError> {
        let mut ended = Ended::new(self.prompts.len());
        loop {
            if let (choice, Update::Done(result)) = self.next().await
                && let Some(all) = ended.put(choice, uncut(*result)?)
            {
                return Ok(all);
            }
        }
    }
}

/// The choices that have come to their end.
#[derive(Debug)]
pub struct Ended(Vec<Option<Completion>>);

impl Ended {
    /// None of `count` yet.
    pub fn new(count: usize) -> Self {
        Self((0..count).map(|_| None).collect())
    }

    /// One more; all of them, once they are complete.
    pub fn put(&mut self, choice: usize, completion: Completion) -> Option<Vec<Completion>> {
        self.0[choice] = Some(completion);
        self.0.iter().all(Option::is_some).then(|| self.0.drain(..).flatten().collect())
    }
}

/// The engine's thread went away without a word.
fn lost() -> (usize, Update) {
    (0, Update::Done(Box::new(Err(JobError::Stopped))))
}

/// Checks and tokenizes, a few requests at a time; ends early when the client has gone.
async fn prepare(call: &Call, ask: Ask, cancel: &CancelToken) -> Result<Vec<Prepared>, ApiError> {
    let permit = call.place().await?;
    let server = &call.server;
    let (preparer, defaults, cancel) = (Arc::clone(&server.preparer), server.defaults, cancel.clone());
    let prepared = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        let requests = ask.requests(defaults, crate::random_seed());
        requests.into_iter().map(|request| preparer.prepare_unless(request, &cancel)).collect::<Result<Vec<_>, _>>()
    });
    let prepared = prepared.await.map_err(|error| JobError::Panicked(error.to_string()))?;
    Ok(prepared?)
}

fn job(
    choice: usize,
    prepared: Prepared,
    cancel: &CancelToken,
    sender: &UnboundedSender<(usize, Update)>,
    record: &Arc<Record>,
) -> Job {
    let (events, ends, record) = (sender.clone(), sender.clone(), Arc::clone(record));
    Job {
        prepared,
        cancel: cancel.clone(),
        sink: Box::new(move |event| match events.send((choice, Update::Event(event))) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }),
        done: Box::new(move |result| {
            record.ended(&result);
            // Before the reader hears of the end: its thread is to be the last, and to write the line.
            drop(record);
            // A reader that has left needs no result.
            let _ = ends.send((choice, Update::Done(Box::new(result))));
        }),
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
