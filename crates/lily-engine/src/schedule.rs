//! Flow 3: who runs when. One thread owns the engine; requests wait for it in a bounded queue, first in, first out, and
//! run side by side as far as the engine has places. Knows nothing of sockets: a caller hands over closures for events
//! and for the end.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::engine::EngineError;
use crate::prepare::Prepared;
use crate::request::{CancelToken, Completion, Event, FinishReason, Timings, Usage};

/// How long a thread without work sleeps while something can wait, and without even that.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3600)];

/// A pause in which people do not just read the last answer.
const REST_AFTER: Duration = Duration::from_secs(10);

/// How often an end is looked for.
const ROUND: Duration = Duration::from_millis(10);

/// Names a request to the engine that runs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// What comes of a request, in order.
#[derive(Debug)]
pub enum Update {
    /// Something happened.
    Event(Event),
    /// It ended; nothing follows.
    Done(Box<Result<Completion, EngineError>>),
}

/// Takes the updates of all requests as they come; `Break` cancels the one concerned.
pub type Deliver<'a> = dyn FnMut(RequestId, Update) -> ControlFlow<()> + 'a;

/// What the thread drives: the engine, or a fake in tests.
pub trait Drive {
    /// Most requests that run at the same time.
    fn capacity(&self) -> usize;

    /// Requests that run.
    fn running(&self) -> usize;

    /// Takes a request up, behind those that run. Called only where `running` is below `capacity`.
    fn begin(&mut self, id: RequestId, prepared: Prepared, cancel: CancelToken);

    /// Moves the running requests on: at most one decode step and one prefill chunk.
    fn step(&mut self, deliver: &mut Deliver);

    /// Nobody has asked for anything for a while: a little of what can wait may be done. `false` if there is no more.
    fn rest(&mut self) -> bool {
        false
    }

    /// Nothing follows: what is worth it may be written down.
    fn close(&mut self) {}

    /// What was done so far, and what is held.
    fn stats(&self) -> Stats;
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
    pub prepared: Prepared,
    /// Ends the job early; a job cancelled while it waits is never started.
    pub cancel: CancelToken,
    /// Takes events; `Break` cancels.
    pub sink: Box<dyn FnMut(Event) -> ControlFlow<()> + Send>,
    /// Called exactly once, last, unless `submit` refused the job.
    pub done: Box<dyn FnOnce(Result<Completion, JobError>) + Send>,
}

/// What an engine has done since it was opened, and what it holds now; for people and monitors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests that run: prefill or decode.
    pub running: usize,
    /// Prompt tokens that were computed.
    pub prefilled_tokens: u64,
    /// Prompt tokens whose state was taken from earlier turns.
    pub cached_tokens: u64,
    /// Tokens that were generated.
    pub generated_tokens: u64,
    /// Decode steps; generated tokens over them is the mean batch.
    pub decode_steps: u64,
    /// Prefill chunks.
    pub prefill_chunks: u64,
    /// Requests that were put back because the cache was full.
    pub preemptions: u64,
    /// States that later requests may resume from.
    pub snapshots: usize,
    /// Their bytes.
    pub snapshot_bytes: u64,
    /// Most bytes that they may take.
    pub snapshot_budget_bytes: u64,
    /// Blocks of 256 positions in use.
    pub kv_blocks_used: usize,
    /// All of them.
    pub kv_blocks: usize,
    /// States on the disk.
    pub disk_snapshots: usize,
    /// Their bytes.
    pub disk_bytes: u64,
}

/// Everything the thread can be told.
enum Command {
    Generate(Box<Job>),
    Shutdown,
}

/// Who hears of a running job.
struct Caller {
    sink: Box<dyn FnMut(Event) -> ControlFlow<()> + Send>,
    done: Box<dyn FnOnce(Result<Completion, JobError>) + Send>,
    cancel: CancelToken,
}

/// The thread that owns the engine. Dropping it cancels the running jobs, ends the waiting ones with
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
        E: Drive,
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

    /// Most jobs that may wait.
    pub fn capacity(&self) -> usize {
        self.shared.capacity
    }

    /// Jobs that wait; the running ones are not counted.
    pub fn waiting(&self) -> usize {
        self.shared.lock().waiting.len()
    }

    /// What the engine has done so far and holds now.
    pub fn stats(&self) -> Stats {
        self.shared.lock().stats
    }

    /// Takes no more jobs, cancels the running ones and ends the waiting ones. Returns at once.
    pub fn stop(&self) {
        let mut queue = self.shared.lock();
        queue.closed.get_or_insert(Closed::Stopped);
        queue.running.iter().for_each(CancelToken::cancel);
        queue.waiting.push_front(Command::Shutdown);
        self.shared.wake.notify_one();
    }

    /// Waits for the thread's end, after `stop`: what it writes down then is worth a while. `false` if it took longer.
    pub fn ended_within(&self, most: Duration) -> bool {
        let start = Instant::now();
        while self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            if start.elapsed() >= most {
                return false;
            }
            std::thread::sleep(ROUND);
        }
        true
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
    running: Vec<CancelToken>,
    closed: Option<Closed>,
    stats: Stats,
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

    /// The next commands: as many jobs as there are `places`. If nothing else is to be done it waits for the first, for
    /// so long.
    fn next(&self, places: usize, patience: Duration) -> Vec<Command> {
        let mut queue = self.lock();
        if queue.waiting.is_empty() && !patience.is_zero() {
            queue = self.wake.wait_timeout(queue, patience).unwrap_or_else(PoisonError::into_inner).0;
        }
        let shutdown = matches!(queue.waiting.front(), Some(Command::Shutdown));
        let count = if shutdown { 1 } else { places.min(queue.waiting.len()) };
        queue.waiting.drain(..count).collect()
    }

    /// Tells what runs, so that `stop` can cancel it, and what was done so far.
    fn publish(&self, running: Vec<CancelToken>, stats: Stats) {
        let mut queue = self.lock();
        // A stop may have come while these were taken out of the queue.
        if queue.closed.is_some() {
            running.iter().for_each(CancelToken::cancel);
        }
        queue.running = running;
        queue.stats = stats;
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
            queue.running.clear();
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

/// The callers of the running jobs. However the thread ends, each hears of it.
#[derive(Default)]
struct Callers {
    by_id: HashMap<RequestId, Caller>,
    next_id: u64,
}

impl Callers {
    fn update(&mut self, id: RequestId, update: Update) -> ControlFlow<()> {
        match update {
            Update::Event(event) => match self.by_id.get_mut(&id) {
                Some(caller) => (caller.sink)(event),
                None => ControlFlow::Break(()),
            },
            Update::Done(result) => {
                if let Some(caller) = self.by_id.remove(&id) {
                    (caller.done)(result.map_err(JobError::from));
                }
                ControlFlow::Continue(())
            }
        }
    }

    fn running(&self) -> Vec<CancelToken> {
        self.by_id.values().map(|caller| caller.cancel.clone()).collect()
    }

    fn fail(&mut self, why: &Closed) {
        for (_, caller) in self.by_id.drain() {
            (caller.done)(Err(why.clone().into()));
        }
    }
}

fn run(mut engine: impl Drive, shared: &Shared) {
    let mut callers = Callers::default();
    let mut open = true;
    let (mut since, mut is_restless) = (Instant::now(), false);
    while open || engine.running() > 0 {
        let is_idle = open && engine.running() == 0;
        let places = if open { engine.capacity().saturating_sub(engine.running()) } else { 0 };
        let pause = PAUSES[usize::from(!is_restless)];
        let commands = shared.next(places, if is_idle { pause } else { Duration::ZERO });
        if commands.is_empty() && is_idle {
            if since.elapsed() >= REST_AFTER {
                is_restless = engine.rest();
                shared.publish(Vec::new(), engine.stats());
            }
            continue;
        }
        (since, is_restless) = (Instant::now(), true);
        for command in commands {
            match command {
                Command::Generate(job) => begin(*job, &mut engine, &mut callers),
                Command::Shutdown => open = false,
            }
        }
        shared.publish(callers.running(), engine.stats());
        let step = AssertUnwindSafe(|| engine.step(&mut |id, update| callers.update(id, update)));
        if let Err(panic) = catch_unwind(step) {
            let why = Closed::Panicked(panic_text(&*panic));
            // Closed before the callers hear of it, so that their next submit is refused.
            shared.close(why.clone());
            callers.fail(&why);
            return;
        }
        shared.publish(callers.running(), engine.stats());
    }
    engine.close();
}

fn begin(job: Job, engine: &mut impl Drive, callers: &mut Callers) {
    let Job { prepared, cancel, sink, done } = job;
    if cancel.is_cancelled() {
        return done(Ok(cancelled()));
    }
    let id = RequestId(callers.next_id);
    callers.next_id += 1;
    callers.by_id.insert(id, Caller { sink, done, cancel: cancel.clone() });
    engine.begin(id, prepared, cancel);
}

/// The completion of a job that never ran.
fn cancelled() -> Completion {
    Completion {
        content: String::new(),
        reasoning: String::new(),
        tool_calls: Vec::new(),
        tokens: Vec::new(),
        logprobs: None,
        prompt_logprobs: None,
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
mod tests;
