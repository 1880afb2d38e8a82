//! Worker threads for one dispatch at a time. Workers spin briefly after a dispatch, since the next one is usually
//! microseconds away, then sleep. Which thread runs a task never matters to the result.

use std::any::Any;
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

/// Spins before a worker sleeps: some tens of microseconds.
const SPINS: usize = 4_000;
/// Spins before the caller yields its core to whoever holds up a worker.
const PATIENCE: usize = 20_000;
/// Scalar operations (about a third of a nanosecond each) below which sharing costs more than it saves.
const INLINE_WORK: usize = 32_768;
/// Set in `gate` while workers may join the current dispatch.
const OPEN: usize = 1 << (usize::BITS - 1);

/// A task: (task number, thread number).
type Task<'a> = dyn Fn(usize, usize) + Sync + 'a;

struct Shared {
    /// Counts dispatches; a change means that `job` is new.
    epoch: AtomicUsize,
    job: UnsafeCell<Option<*const Task<'static>>>,
    tasks: AtomicUsize,
    next: AtomicUsize,
    /// Workers inside the current dispatch, and `OPEN`. The caller closes it when no task is left and then waits for
    /// those inside only: a worker that the system has not scheduled holds nobody up.
    gate: AtomicUsize,
    /// What the first task that panicked left.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// Workers that run.
    begun: AtomicUsize,
    /// Someone is inside `run`.
    busy: AtomicBool,
    stop: AtomicBool,
    sleepers: Mutex<usize>,
    wake: Condvar,
}

// SAFETY: `job` is written by the one caller of `run` while the gate is closed and nobody is inside, and read only by
// workers that have joined through the open gate, which the caller opens (Release) after writing it.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` refers to a `Sync` closure that outlives the dispatch.
unsafe impl Send for Shared {}

/// The pool. The thread that calls `run` works too, as thread 0.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Pool {
    /// `threads` in all, the caller's included.
    ///
    /// # Errors
    /// The system starts no more threads.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            epoch: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            tasks: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            gate: AtomicUsize::new(0),
            panic: Mutex::new(None),
            begun: AtomicUsize::new(0),
            busy: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            sleepers: Mutex::new(0),
            wake: Condvar::new(),
        });
        let mut pool = Self { shared, workers: Vec::new() };
        for thread in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let name = format!("lily-worker-{thread}");
            pool.workers.push(std::thread::Builder::new().name(name).spawn(move || work(&shared, thread))?);
        }
        // What a thread allocates in order to begin is then no part of a step.
        while pool.shared.begun.load(Ordering::Acquire) < pool.workers.len() {
            std::thread::yield_now();
        }
        Ok(pool)
    }

    /// Threads, the caller's included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs tasks `0..tasks`, each once, on all threads; returns when all are done. Tasks of one thread follow one
    /// another, so the thread number is theirs alone. One call at a time, and none from a task. The first panic of a
    /// task is the caller's, once no task runs any more; tasks that have not begun by then may be left out.
    pub fn run(&self, tasks: usize, task: &Task) {
        self.run_on(self.threads(), tasks, task);
    }

    /// As `run`, on this thread alone if the whole `work` (scalar operations) is small.
    pub fn tasks(&self, tasks: usize, work: usize, task: &Task) {
        self.run_on(if work < INLINE_WORK { 1 } else { self.threads() }, tasks, task);
    }

    fn run_on(&self, threads: usize, tasks: usize, task: &Task) {
        let _one_at_a_time = Busy::set(&self.shared.busy);
        if threads == 1 || tasks <= 1 {
            (0..tasks).for_each(|i| task(i, 0));
        } else {
            self.dispatch(tasks, task);
        }
    }

    /// Opens the gate to the workers, works too, closes it and waits until they are out.
    fn dispatch(&self, tasks: usize, task: &Task) {
        let shared = &*self.shared;
        // SAFETY: only the lifetime is erased; `dispatch` does not return (nor unwind) before the gate is closed and
        // empty, so no worker holds the pointer after the closure's life.
        let erased = unsafe { std::mem::transmute::<*const Task<'_>, *const Task<'static>>(std::ptr::from_ref(task)) };
        // SAFETY: the gate is closed and empty here and `busy` keeps other callers out, so nobody else uses `job`.
        unsafe { *shared.job.get() = Some(erased) };
        shared.tasks.store(tasks, Ordering::Relaxed);
        shared.next.store(0, Ordering::Relaxed);
        shared.gate.store(OPEN, Ordering::Release);
        shared.epoch.fetch_add(1, Ordering::SeqCst);
        if *lock(&shared.sleepers) > 0 {
            shared.wake.notify_all();
        }
        drain(shared, task, 0);
        shared.gate.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0;
        while shared.gate.load(Ordering::Acquire) > 0 {
            spins += 1;
            if spins < PATIENCE { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        if let Some(panic) = lock(&shared.panic).take() {
            resume_unwind(panic);
        }
    }

    /// Splits `0..n` into ranges, a few per thread so that a slow thread holds up little. `work` is a rough count of
    /// scalar operations per element: small totals run inline.
    pub fn ranges(&self, n: usize, work: usize, f: impl Fn(Range<usize>, usize) + Sync) {
        self.blocks(n, 1, work, f);
    }

    /// As `ranges`, with every range but the last a multiple of `block`.
    pub fn blocks(&self, n: usize, block: usize, work: usize, f: impl Fn(Range<usize>, usize) + Sync) {
        if n == 0 {
            return;
        }
        let alone = self.threads() == 1 || n.saturating_mul(work) < INLINE_WORK;
        let size = if alone { n } else { n.div_ceil(self.threads() * 4).next_multiple_of(block) };
        self.run(n.div_ceil(size), &|i, thread| f(i * size..((i + 1) * size).min(n), thread));
    }

    /// Splits the rows of `out` (`[R, cols]`) over the threads.
    pub fn rows<T: Send>(&self, out: &mut [T], cols: usize, work: usize, f: impl Fn(Range<usize>, &mut [T]) + Sync) {
        assert!(cols > 0 && out.len().is_multiple_of(cols), "a matrix is whole rows");
        let rows = out.len() / cols;
        let parts = Parts::new(out);
        self.ranges(rows, work, |range, _| {
            // SAFETY: ranges of one `ranges` call are disjoint.
            let part = unsafe { parts.get(range.start * cols..range.end * cols) };
            f(range, part);
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        drop(lock(&self.shared.sleepers));
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // Tasks' panics do not end a worker; there is nobody to tell of another.
            let _ = worker.join();
        }
    }
}

/// Marks the pool as running something; unmarks it when the caller leaves, also by a panic.
struct Busy<'a>(&'a AtomicBool);

impl<'a> Busy<'a> {
    fn set(flag: &'a AtomicBool) -> Self {
        assert!(!flag.swap(true, Ordering::Acquire), "the pool runs one thing at a time");
        Self(flag)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

fn lock<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Nothing panics under these locks.
    m.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Runs tasks until none is left. After a panic none is begun.
fn drain(shared: &Shared, task: &Task, thread: usize) {
    let tasks = shared.tasks.load(Ordering::Relaxed);
    let run = || {
        loop {
            let i = shared.next.fetch_add(1, Ordering::Relaxed);
            if i >= tasks {
                return;
            }
            task(i, thread);
        }
    };
    if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
        shared.next.store(tasks, Ordering::Relaxed);
        let mut first = lock(&shared.panic);
        if first.is_none() {
            *first = Some(panic);
        }
    }
}

fn work(shared: &Shared, thread: usize) {
    shared.begun.fetch_add(1, Ordering::Release);
    let mut seen = 0;
    loop {
        seen = wait_for_epoch(shared, seen);
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        if !join(shared) {
            continue;
        }
        // SAFETY: joined, so the caller has written `job` and leaves it until this worker is out again.
        if let Some(task) = unsafe { (*shared.job.get()).map(|job| &*job) } {
            drain(shared, task, thread);
        }
        shared.gate.fetch_sub(1, Ordering::Release);
    }
}

/// Enters the current dispatch if it is still open.
fn join(shared: &Shared) -> bool {
    let enter = |gate: usize| (gate & OPEN != 0).then_some(gate + 1);
    shared.gate.fetch_update(Ordering::Acquire, Ordering::Relaxed, enter).is_ok()
}

fn wait_for_epoch(shared: &Shared, seen: usize) -> usize {
    for _ in 0..SPINS {
        let epoch = shared.epoch.load(Ordering::SeqCst);
        if epoch != seen {
            return epoch;
        }
        std::hint::spin_loop();
    }
    let mut sleepers = lock(&shared.sleepers);
    *sleepers += 1;
    loop {
        // Under the lock: the publisher takes it after the epoch changes, so a change cannot slip between this look
        // and the wait.
        let epoch = shared.epoch.load(Ordering::SeqCst);
        if epoch != seen {
            *sleepers -= 1;
            return epoch;
        }
        sleepers = shared.wake.wait(sleepers).unwrap_or_else(std::sync::PoisonError::into_inner);
    }
}

/// A slice that tasks write in disjoint parts.
pub struct Parts<'a, T> {
    first: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

impl<'a, T> Parts<'a, T> {
    /// Takes the whole slice.
    pub fn new(slice: &'a mut [T]) -> Self {
        Self { first: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// One part.
    ///
    /// # Safety
    /// Parts held at the same time must not overlap.
    #[expect(clippy::mut_from_ref, reason = "disjoint parts of one exclusive slice")]
    pub unsafe fn get(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: in bounds by the assertion; disjoint from other parts by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.first.add(range.start), range.len()) }
    }
}

// SAFETY: handing out disjoint `&mut [T]` to other threads needs T: Send, nothing else is shared.
unsafe impl<T: Send> Sync for Parts<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Parts<'_, T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_for_any_thread_count() {
        for threads in 1..=5 {
            let pool = Pool::new(threads).unwrap();
            for tasks in [0, 1, 2, 7, 1000] {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(tasks, &|i, thread| {
                    assert!(thread < threads);
                    counts[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn rows_are_split_without_gaps() {
        let pool = Pool::new(3).unwrap();
        let mut out = vec![0u32; 1001 * 7];
        pool.rows(&mut out, 7, 1 << 20, |range, part| {
            for (row, values) in range.zip(part.chunks_exact_mut(7)) {
                values.fill(row as u32 + 1);
            }
        });
        assert!(out.chunks_exact(7).enumerate().all(|(i, row)| row.iter().all(|&v| v == i as u32 + 1)));
    }

    /// The message of a panic.
    fn panic_of(f: impl FnOnce()) -> String {
        let panic = catch_unwind(AssertUnwindSafe(f)).unwrap_err();
        panic.downcast_ref::<String>().cloned().unwrap_or_else(|| (*panic.downcast_ref::<&str>().unwrap()).to_owned())
    }

    #[test]
    fn a_panicking_task_reaches_the_caller_and_leaves_the_pool_usable() {
        let pool = Pool::new(2).unwrap();
        let message = panic_of(|| pool.run(64, &|i, _| assert!(i != 40, "task {i}")));
        assert_eq!(message, "task 40");
        // Of two panics the second is not kept for the next run.
        panic_of(|| pool.run(64, &|i, _| panic!("task {i}")));
        let done = AtomicUsize::new(0);
        pool.run(64, &|_, _| {
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.load(Ordering::Relaxed), 64);
    }

    #[test]
    fn a_task_may_not_use_the_pool() {
        for threads in [1, 3] {
            let pool = Pool::new(threads).unwrap();
            let message = panic_of(|| pool.run(8, &|_, _| pool.ranges(5, 1, |_, _| {})));
            assert_eq!(message, "the pool runs one thing at a time");
            pool.run(8, &|_, _| {});
        }
    }

    /// Many short runs of any size, some with panics, with pauses in which workers fall asleep; then the end of the
    /// pool while they sleep or still spin.
    #[test]
    fn short_runs_panics_and_sleeps_in_any_order() {
        let mut state = 1u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for round in 0..40 {
            let pool = Pool::new(2 + round % 4).unwrap();
            for _ in 0..random(100) {
                let tasks = random(20) as usize;
                let bad = if random(8) == 0 { random(20) as usize } else { tasks };
                // On this frame, so that a task that outlived its run would write to what is gone.
                let mut cells = [0u8; 20];
                let parts = Parts::new(&mut cells);
                let run = catch_unwind(AssertUnwindSafe(|| {
                    pool.run(tasks, &|i, _| {
                        // SAFETY: each task is run once, and takes its own cell.
                        unsafe { parts.get(i..i + 1)[0] += 1 };
                        assert!(i != bad, "task {i}");
                    });
                }));
                assert_eq!(run.is_err(), bad < tasks);
                assert!(cells[tasks..].iter().all(|&c| c == 0));
                assert!(cells[..tasks].iter().all(|&c| c == 1 || (c == 0 && run.is_err())));
            }
            if random(4) == 0 {
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        }
    }

    #[test]
    fn workers_wake_after_a_long_sleep() {
        let pool = Pool::new(2).unwrap();
        for _ in 0..3 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            let done = AtomicUsize::new(0);
            pool.run(8, &|_, _| {
                done.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(done.load(Ordering::Relaxed), 8);
        }
    }
}
