//! What dispatches move, for whoever asks: distinct bytes, loads and stores of simdgroups, cache lines. Filled by
//! `commands` from the reports of checked kernels; asked for and taken on the thread that makes the command buffers.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use crate::library::{Touched, Traffic};

/// Bytes of a cache line.
pub const LINE_BYTES: usize = 128;

/// One binding of a dispatch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BindingCounts {
    /// `[[buffer(index)]]`.
    pub index: usize,
    /// The buffer's label; none of bytes that the encoder copied.
    pub label: Option<String>,
    /// Which buffer: equal for bindings of one buffer, 0 of copied bytes.
    pub buffer: usize,
    /// Where in the buffer the binding starts.
    pub offset: usize,
    /// Bytes of the buffer that were read, in ascending ranges. Where bindings of a buffer overlap, a byte belongs to the
    /// one that starts last before it.
    pub read: Vec<Range<usize>>,
    /// The same of bytes written.
    pub written: Vec<Range<usize>>,
    /// A load is what a simdgroup's lanes read by one instruction, each for the n-th time since they last met.
    pub loads: Traffic,
    /// The same of stores.
    pub stores: Traffic,
}

impl BindingCounts {
    /// Distinct bytes read.
    pub fn read_bytes(&self) -> usize {
        self.read.iter().map(Range::len).sum()
    }

    /// Distinct bytes written.
    pub fn written_bytes(&self) -> usize {
        self.written.iter().map(Range::len).sum()
    }
}

/// One dispatch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DispatchCounts {
    /// The kernel.
    pub kernel: String,
    /// Threadgroups.
    pub groups: [u32; 3],
    /// Threads of each.
    pub threads: [u32; 3],
    /// Everything bound, by index.
    pub bindings: Vec<BindingCounts>,
}

impl DispatchCounts {
    /// What was bound at an index.
    ///
    /// # Panics
    /// Nothing was.
    pub fn binding(&self, index: usize) -> &BindingCounts {
        let bound = self.bindings.iter().find(|b| b.index == index);
        bound.unwrap_or_else(|| panic!("{} has no buffer {index}", self.kernel))
    }
}

/// The dispatches of a kernel.
pub fn of<'a>(dispatches: &'a [DispatchCounts], kernel: &'a str) -> impl Iterator<Item = &'a DispatchCounts> {
    dispatches.iter().filter(move |d| d.kernel == kernel)
}

/// Where command buffers write what they count.
pub type Sink = Arc<Mutex<Vec<DispatchCounts>>>;

thread_local! {
    static SINK: RefCell<Option<Sink>> = const { RefCell::new(None) };
}

/// From now on this thread's command buffers count, in checked mode; or no more.
pub fn count(on: bool) {
    SINK.with_borrow_mut(|sink| *sink = on.then(Sink::default));
}

/// The dispatches since `count(true)` or the last call, in the order of their execution.
pub fn take_counts() -> Vec<DispatchCounts> {
    SINK.with_borrow(|sink| sink.as_ref().map(|sink| std::mem::take(&mut *locked(sink)))).unwrap_or_default()
}

/// This thread's sink, if it counts.
pub fn sink() -> Option<Sink> {
    SINK.with_borrow(Clone::clone)
}

/// Notes a dispatch.
pub fn note(sink: &Sink, dispatch: DispatchCounts) {
    locked(sink).push(dispatch);
}

fn locked(sink: &Sink) -> std::sync::MutexGuard<'_, Vec<DispatchCounts>> {
    sink.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ranges of the bytes that have a bit, from the touched bytes of a binding that starts at `offset`.
pub fn ranges<'a>(touched: impl Iterator<Item = &'a Touched>, bit: u8, offset: usize) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for part in touched {
        for (i, _) in part.bits.iter().enumerate().filter(|(_, bits)| **bits & bit != 0) {
            let at = offset + part.first + i;
            match ranges.last_mut() {
                Some(last) if last.end == at => last.end += 1,
                _ => ranges.push(at..at + 1),
            }
        }
    }
    ranges
}
