//! Queues and events: which command buffers are in flight, what orders them, and what the host waited for. They run as late
//! as they can, when the host waits, so that a host that looks too early sees what was there before.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::commands::Commands;

/// What the hosts of this thread did so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostCounts {
    /// Command buffers committed.
    pub command_buffers: u64,
    /// Dispatches in them.
    pub dispatches: u64,
    /// Waits for command buffers or events.
    pub waits: u64,
}

thread_local! {
    static COUNTS: Cell<HostCounts> = const { Cell::new(HostCounts { command_buffers: 0, dispatches: 0, waits: 0 }) };
}

/// What the hosts of this thread did so far.
pub fn host_counts() -> HostCounts {
    COUNTS.get()
}

fn count(add: impl FnOnce(&mut HostCounts)) {
    let mut counts = COUNTS.get();
    add(&mut counts);
    COUNTS.set(counts);
}

/// The value behind a lock.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Event(AtomicU64);

impl Event {
    /// As it is now.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    /// Makes it at least this.
    pub fn signal(&self, value: u64) {
        self.0.fetch_max(value, Ordering::SeqCst);
    }
}

type Shared = Arc<Mutex<Commands>>;

/// Command buffers in the order of their commits, until the host knows that they are done.
#[derive(Default)]
pub struct Queue {
    in_flight: Mutex<Vec<Shared>>,
}

/// Those of `in_flight` that have signalled when what waits for `waits` begins.
fn before(in_flight: &[Shared], waits: Vec<(Arc<Event>, u64)>) -> Vec<bool> {
    let mut found = vec![false; in_flight.len()];
    let mut open = waits;
    while let Some((event, value)) = open.pop() {
        for (found, other) in found.iter_mut().zip(in_flight) {
            let other = locked(other);
            let signals = other.signals.iter().any(|(of, to)| Arc::ptr_eq(of, &event) && *to == value);
            if signals && !*found {
                *found = true;
                open.extend(other.waits.iter().cloned());
            }
        }
    }
    found
}

impl Queue {
    /// Takes a command buffer over.
    pub fn commit(&self, commands: &Shared) {
        let mut in_flight = locked(&self.in_flight);
        in_flight.retain(|other| !Arc::ptr_eq(other, commands));
        let mut mine = locked(commands);
        mine.commit();
        count(|counts| {
            counts.command_buffers += 1;
            counts.dispatches += mine.dispatches() as u64;
        });
        let ordered = before(&in_flight, mine.waits.clone());
        for (other, _) in in_flight.iter().zip(ordered).filter(|(_, ordered)| !ordered) {
            let other = locked(other);
            let shares = mine.memories().any(|memory| other.memories().any(|of| Arc::ptr_eq(of, memory)));
            if shares {
                // Reading the same bytes would be allowed; a host that orders its steps has no need of it.
                mine.fail("no event orders two command buffers in flight that use the same untracked buffer");
            }
        }
        mine.memories().for_each(|memory| memory.used_by(commands));
        drop(mine);
        in_flight.push(Arc::clone(commands));
    }

    /// The host waits for a command buffer: it runs, after all that was committed before.
    pub fn wait(&self, commands: &Shared) {
        count(|counts| counts.waits += 1);
        if !locked(commands).committed() {
            locked(commands).fail("waited for a command buffer that was not committed");
            return;
        }
        let mut in_flight = locked(&self.in_flight);
        let Some(at) = in_flight.iter().position(|other| Arc::ptr_eq(other, commands)) else { return };
        in_flight[..=at].iter().for_each(|other| locked(other).run());
        let waits = locked(commands).waits.clone();
        let done = before(&in_flight, waits);
        let mut index = 0;
        in_flight.retain(|other| {
            let known = index == at || done[index];
            locked(other).known = known;
            index += 1;
            !known
        });
    }
}
