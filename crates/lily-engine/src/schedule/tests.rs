//! The thread over a fake engine: order, places, cancellation, panics, the end.

use super::*;
use crate::prepare::Preparer;
use crate::request::{Prompt, Request, RequestError, SamplingParams};
use crate::text::Codec;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(5);

/// Tells which prompt it begins; "wait" runs until cancelled, "panic" and "error" do that, the rest ends at once.
struct Fake {
    started: Sender<String>,
    places: usize,
    running: Vec<(RequestId, String, CancelToken)>,
}

impl Drive for Fake {
    fn capacity(&self) -> usize {
        self.places
    }

    fn running(&self) -> usize {
        self.running.len()
    }

    fn begin(&mut self, id: RequestId, prepared: Prepared, cancel: CancelToken) {
        let Prompt::Raw(text) = prepared.request.prompt else { panic!("raw") };
        self.started.send(text.clone()).unwrap();
        self.running.push((id, text, cancel));
    }

    fn step(&mut self, deliver: &mut Deliver) {
        std::thread::sleep(Duration::from_millis(1));
        self.running.retain(|(id, text, cancel)| {
            let flow = deliver(*id, Update::Event(Event::Content(text.clone())));
            let result = match text.as_str() {
                "panic" => panic!("boom"),
                "error" => Err(RequestError::Template("no".into()).into()),
                "wait" if !cancel.is_cancelled() && flow.is_continue() => return true,
                _ => Ok(cancelled()),
            };
            let _ = deliver(*id, Update::Done(Box::new(result)));
            false
        });
    }

    fn stats(&self) -> Stats {
        Stats { running: self.running.len(), ..Stats::default() }
    }
}

fn start_with(places: usize, capacity: usize) -> (EngineThread, Receiver<String>) {
    let (started, runs) = channel();
    let open = move || Ok((Fake { started, places, running: Vec::new() }, ()));
    let (thread, ()) = EngineThread::start(capacity, open).unwrap();
    (thread, runs)
}

fn start(capacity: usize) -> (EngineThread, Receiver<String>) {
    start_with(1, capacity)
}

type Ended = Receiver<Result<Completion, JobError>>;

fn prepared(text: &str) -> Prepared {
    let tokenizer = include_bytes!("../../../../models/lily-demo/tokenizer.json");
    let codec = Codec::open(&|name| (name == "tokenizer.json").then_some(tokenizer.into())).unwrap();
    let preparer = Preparer::new(Arc::new(codec), 100, 50_000, 50_000);
    preparer.prepare(Request::new(Prompt::Raw(text.into()), SamplingParams::GREEDY)).unwrap()
}

fn job(text: &str) -> (Job, CancelToken, Ended) {
    let (ended, end) = channel();
    let cancel = CancelToken::default();
    let job = Job {
        prepared: prepared(text),
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
fn as_many_jobs_run_side_by_side_as_there_are_places() {
    let (thread, runs) = start_with(2, 4);
    let (first, first_end) = submit(&thread, "wait");
    let (second, _second_end) = submit(&thread, "wait");
    let (_, third_end) = submit(&thread, "third");
    assert_eq!([runs.recv_timeout(SOON).unwrap(), runs.recv_timeout(SOON).unwrap()], ["wait", "wait"]);
    assert_eq!(thread.waiting(), 1);
    assert!(third_end.recv_timeout(Duration::from_millis(20)).is_err());
    first.cancel();
    assert!(third_end.recv_timeout(SOON).unwrap().is_ok() && first_end.recv_timeout(SOON).unwrap().is_ok());
    second.cancel();
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
