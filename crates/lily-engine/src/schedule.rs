//! Flow 3: who runs when. One thread owns the engine; requests wait for it in a bounded queue, first in,
//! first out. Knows nothing of sockets: a caller hands over closures for events and for the end.

use std::any::Any;
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::engine::{Engine, EngineError};
use crate::request::{CancelToken, Completion, Event, EventSink, FinishReason, Request, Timings, Usage};

/// What the thread runs; the engine, or a fake in tests.
pub trait Generate {
    /// Runs one request to its end; see [`Engine::generate`].
    ///
    /// # Errors
    /// The request is out of range or the device failed.
    fn generate(
        &mut self,
        request: &Request,
        cancel: &CancelToken,
        sink: &mut EventSink,
    ) -> Result<Completion, EngineError>;
}

impl Generate for Engine {
    fn generate(
        &mut self,
        request: &Request,
        cancel: &CancelToken,
        sink: &mut EventSink,
    ) -> Result<Completion, EngineError> {
        Engine::generate(self, request, cancel, sink)
    }
}

/// Why a job gave no completion.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// The engine said no.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The engine panicked during this or an earlier job; its thread is gone.
    #[error("the engine failed and has stopped: {0}")]
    Panicked(String),
    /// The engine was shut down before the job ran.
    #[error("the engine is shutting down")]
    Stopped,
}

/// Why a job was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// As many jobs wait as may.
    #[error("the queue is full")]
    QueueFull,
    /// The engine has stopped.
    #[error("the engine has stopped")]
    Stopped,
}

/// One request with its callbacks; both are called on the engine's thread and must not block.
pub struct Job {
    /// What to run.
    pub request: Request,
    /// Ends the job early; a job cancelled while it waits is never started.
    pub cancel: CancelToken,
    /// Takes events; `Break` cancels.
    pub sink: Box<dyn FnMut(Event) -> ControlFlow<()> + Send>,
    /// Called exactly once, last, unless `submit` refused the job.
    pub done: Box<dyn FnOnce(Result<Completion, JobError>) + Send>,
}

/// Everything the thread can be told.
enum Command {
    Generate(Box<Job>),
    Shutdown,
}

/// The thread that owns the engine. Dropping it cancels the running job, ends the waiting ones with
/// [`JobError::Stopped`] and joins.
pub struct EngineThread {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl EngineThread {
    /// Starts a thread named `engine`, opens the engine on it and waits for that. `open` also returns what the
    /// caller wants to know of the engine, which itself never leaves the thread (it need not be `Send`).
    /// At most `capacity` jobs wait.
    ///
    /// # Errors
    /// Those of `open`; [`JobError::Panicked`] if it panicked or no thread could be started.
    pub fn start<E, T>(
        capacity: usize,
        open: impl FnOnce() -> Result<(E, T), EngineError> + Send + 'static,
    ) -> Result<(Self, T), JobError>
    where
        E: Generate,
        T: Send + 'static,
    {
        let shared = Arc::new(Shared { capacity, queue: Mutex::default(), wake: Condvar::new() });
        let (opened, facts) = std::sync::mpsc::sync_channel(1);
        let on_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("engine".into()).spawn(move || {
            let _close = CloseOnExit(&on_thread);
            match catch_unwind(AssertUnwindSafe(open)) {
                Ok(Ok((engine, facts))) => {
                    // The starter waits on the other end; if it is gone, Shutdown follows.
                    let _ = opened.send(Ok(facts));
                    run(engine, &on_thread);
                }
                Ok(Err(error)) => drop(opened.send(Err(error.into()))),
                Err(panic) => drop(opened.send(Err(JobError::Panicked(panic_text(&*panic))))),
            }
        });
        let thread = thread.map_err(|error| JobError::Panicked(format!("no thread: {error}")))?;
        let this = Self { shared, thread: Some(thread) };
        let facts = facts.recv().unwrap_or(Err(JobError::Stopped))?;
        Ok((this, facts))
    }

    /// Queues a job behind all others.
    ///
    /// # Errors
    /// The queue is full, or the thread has stopped; the job's callbacks are not called then.
    pub fn submit(&self, job: Job) -> Result<(), SubmitError> {
        let abandoned = {
            let mut queue = self.shared.lock();
            if queue.closed.is_some() {
                return Err(SubmitError::Stopped);
            }
            // Jobs whose callers left hold no place.
            let full = queue.waiting.len() >= self.shared.capacity;
            let abandoned = if full { queue.take_cancelled() } else { Vec::new() };
            if full && abandoned.is_empty() {
                return Err(SubmitError::QueueFull);
            }
            queue.waiting.push_back(Command::Generate(Box::new(job)));
            self.shared.wake.notify_one();
            abandoned
        };
        for job in abandoned {
            (job.done)(Ok(cancelled()));
        }
        Ok(())
    }

    /// Whether jobs are taken: false after a panic or a shutdown.
    pub fn is_alive(&self) -> bool {
        self.shared.lock().closed.is_none()
    }

    /// Jobs that wait; the running one is not counted.
    pub fn waiting(&self) -> usize {
        self.shared.lock().waiting.len()
    }

    /// Takes no more jobs, cancels the running one and ends the waiting ones. Returns at once.
    pub fn stop(&self) {
        let mut queue = self.shared.lock();
        queue.closed.get_or_insert(Closed::Stopped);
        if let Some(running) = &queue.running {
            running.cancel();
        }
        queue.waiting.push_front(Command::Shutdown);
        self.shared.wake.notify_one();
    }
}

impl Drop for EngineThread {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported to the jobs; there is nobody else to tell.
            let _ = thread.join();
        }
    }
}

struct Shared {
    capacity: usize,
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Command>,
    running: Option<CancelToken>,
    closed: Option<Closed>,
}

/// Why no more jobs are taken.
#[derive(Clone)]
enum Closed {
    Stopped,
    Panicked(String),
}

impl Shared {
    /// Nothing runs under the lock that could leave the queue half changed, so poison means nothing here.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next command and marks it as running.
    fn next(&self) -> Command {
        let mut queue = self.lock();
        loop {
            if let Some(command) = queue.waiting.pop_front() {
                queue.running = match &command {
                    Command::Generate(job) => Some(job.cancel.clone()),
                    Command::Shutdown => None,
                };
                return command;
            }
            queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn close(&self, why: Closed) {
        self.lock().closed.get_or_insert(why);
    }
}

impl Queue {
    fn take_cancelled(&mut self) -> Vec<Job> {
        let (mut kept, mut cancelled) = (VecDeque::new(), Vec::new());
        for command in self.waiting.drain(..) {
            match command {
                Command::Generate(job) if job.cancel.is_cancelled() => cancelled.push(*job),
                command @ (Command::Generate(_) | Command::Shutdown) => kept.push_back(command),
            }
        }
        self.waiting = kept;
        cancelled
    }
}

/// However the thread ends, nobody waits for it in vain.
struct CloseOnExit<'a>(&'a Shared);

impl Drop for CloseOnExit<'_> {
    fn drop(&mut self) {
        let (waiting, why) = {
            let mut queue = self.0.lock();
            queue.running = None;
            let why = queue.closed.get_or_insert(Closed::Stopped).clone();
            (std::mem::take(&mut queue.waiting), why)
        };
        for command in waiting {
            match command {
                Command::Generate(job) => (job.done)(Err(why.clone().into())),
                Command::Shutdown => {}
            }
        }
    }
}

impl From<Closed> for JobError {
    fn from(why: Closed) -> Self {
        match why {
            Closed::Stopped => Self::Stopped,
            Closed::Panicked(text) => Self::Panicked(text),
        }
    }
}

fn run(mut engine: impl Generate, shared: &Shared) {
    loop {
        let Job { request, cancel, mut sink, done } = match shared.next() {
            Command::Generate(job) => *job,
            Command::Shutdown => return,
        };
        if cancel.is_cancelled() {
            done(Ok(cancelled()));
            continue;
        }
        match catch_unwind(AssertUnwindSafe(|| engine.generate(&request, &cancel, &mut *sink))) {
            Ok(result) => done(result.map_err(JobError::from)),
            Err(panic) => {
                let text = panic_text(&*panic);
                // Closed before the caller hears of it, so that its next submit is refused.
                shared.close(Closed::Panicked(text.clone()));
                done(Err(JobError::Panicked(text)));
                return;
            }
        }
    }
}

/// The completion of a job that never ran.
fn cancelled() -> Completion {
    Completion {
        content: String::new(),
        reasoning: String::new(),
        tool_calls: Vec::new(),
        tokens: Vec::new(),
        logprobs: None,
        finish_reason: FinishReason::Cancelled,
        usage: Usage::default(),
        timings: Timings::default(),
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without a message").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Prompt, RequestError, SamplingParams};
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    const SOON: Duration = Duration::from_secs(5);

    /// Tells which prompt it runs; "wait" runs until cancelled, "panic" and "error" do that.
    struct Fake {
        started: Sender<String>,
    }

    impl Generate for Fake {
        fn generate(
            &mut self,
            request: &Request,
            cancel: &CancelToken,
            sink: &mut EventSink,
        ) -> Result<Completion, EngineError> {
            let Prompt::Raw(text) = &request.prompt else { panic!("raw") };
            self.started.send(text.clone()).unwrap();
            let _ = sink(Event::Content(text.clone()));
            match text.as_str() {
                "panic" => panic!("boom"),
                "error" => return Err(RequestError::Template("no".into()).into()),
                "wait" => {
                    while !cancel.is_cancelled() {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
                _ => {}
            }
            Ok(cancelled())
        }
    }

    fn start(capacity: usize) -> (EngineThread, Receiver<String>) {
        let (started, runs) = channel();
        let (thread, ()) = EngineThread::start(capacity, move || Ok((Fake { started }, ()))).unwrap();
        (thread, runs)
    }

    type Ended = Receiver<Result<Completion, JobError>>;

    fn job(text: &str) -> (Job, CancelToken, Ended) {
        let request = Request::new(Prompt::Raw(text.into()), SamplingParams::GREEDY);
        let (ended, end) = channel();
        let cancel = CancelToken::default();
        let job = Job {
            request,
            cancel: cancel.clone(),
            sink: Box::new(|_| ControlFlow::Continue(())),
            done: Box::new(move |result| ended.send(result).unwrap()),
        };
        (job, cancel, end)
    }

    fn submit(thread: &EngineThread, text: &str) -> (CancelToken, Ended) {
        let (job, cancel, end) = job(text);
        thread.submit(job).unwrap();
        (cancel, end)
    }

    #[test]
    fn jobs_run_in_order_on_the_engines_thread() {
        let (thread, runs) = start(8);
        let ends: Vec<Ended> = ["a", "b", "error", "c"].map(|text| submit(&thread, text).1).into();
        let results: Vec<bool> = ends.iter().map(|end| end.recv_timeout(SOON).unwrap().is_ok()).collect();
        assert_eq!(results, [true, true, false, true]);
        assert_eq!(runs.try_iter().collect::<Vec<_>>(), ["a", "b", "error", "c"]);
        assert!(thread.is_alive());
    }

    #[test]
    fn a_full_queue_refuses_until_a_waiting_job_is_cancelled() {
        let (thread, runs) = start(2);
        let (running, _end) = submit(&thread, "wait");
        assert_eq!(runs.recv_timeout(SOON).unwrap(), "wait");
        let (first, first_end) = submit(&thread, "first");
        let (_, second_end) = submit(&thread, "second");
        assert_eq!(thread.waiting(), 2);
        assert_eq!(thread.submit(job("third").0), Err(SubmitError::QueueFull));
        first.cancel();
        let (_, third_end) = submit(&thread, "third");
        let dropped = first_end.recv_timeout(SOON).unwrap().unwrap();
        assert_eq!(dropped.finish_reason, FinishReason::Cancelled);
        running.cancel();
        assert!(second_end.recv_timeout(SOON).unwrap().is_ok());
        assert!(third_end.recv_timeout(SOON).unwrap().is_ok());
        assert_eq!(runs.try_iter().collect::<Vec<_>>(), ["second", "third"]);
    }

    #[test]
    fn a_job_cancelled_while_it_waits_is_not_started() {
        let (thread, runs) = start(2);
        let (running, _end) = submit(&thread, "wait");
        runs.recv_timeout(SOON).unwrap();
        let (cancel, end) = submit(&thread, "never");
        cancel.cancel();
        running.cancel();
        assert_eq!(end.recv_timeout(SOON).unwrap().unwrap().finish_reason, FinishReason::Cancelled);
        assert_eq!(runs.try_iter().count(), 0);
    }

    #[test]
    fn a_panic_reaches_every_job_and_the_thread_is_dead() {
        let (thread, runs) = start(4);
        let (running, _end) = submit(&thread, "wait");
        runs.recv_timeout(SOON).unwrap();
        let (_, panicking) = submit(&thread, "panic");
        let (_, waiting) = submit(&thread, "after");
        running.cancel();
        for end in [panicking, waiting] {
            let error = end.recv_timeout(SOON).unwrap().unwrap_err();
            assert_eq!(error.to_string(), "the engine failed and has stopped: boom");
        }
        assert!(!thread.is_alive());
        assert_eq!(thread.submit(job("late").0), Err(SubmitError::Stopped));
    }

    #[test]
    fn dropping_cancels_what_runs_and_ends_what_waits() {
        let (thread, runs) = start(4);
        let (_, running) = submit(&thread, "wait");
        runs.recv_timeout(SOON).unwrap();
        let (_, waiting) = submit(&thread, "after");
        drop(thread);
        assert!(running.try_recv().unwrap().is_ok());
        assert!(matches!(waiting.try_recv().unwrap(), Err(JobError::Stopped)));
    }

    #[test]
    fn failing_to_open_is_the_starters_error() {
        let no = || Err::<(Fake, ()), _>(RequestError::Template("no".into()).into());
        assert!(matches!(EngineThread::start(1, no), Err(JobError::Engine(_))));
        let panics = || -> Result<(Fake, ()), EngineError> { panic!("boom") };
        assert!(matches!(EngineThread::start(1, panics), Err(JobError::Panicked(_))));
    }
}
