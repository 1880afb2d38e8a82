//! Recorded commands: what Metal asks of them, and their run. Dispatches between two barriers of a concurrent pass may
//! overlap, so none may use what another one writes; that is checked by the bytes that they touched.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::counts::{self, BindingCounts, DispatchCounts, Sink};
use crate::library::{Binding, Launch, Library, Parameters, Report};
use crate::mode::{Mode, left_out, mode};

/// Bytes that host and kernels share, aligned as a page is.
pub struct Memory {
    start: NonNull<u8>,
    layout: std::alloc::Layout,
    /// What the host calls it.
    pub label: Mutex<Option<String>>,
    /// The host has given it back. Metal keeps what a command buffer uses; a host that gives it back before is told, for
    /// it has lost count.
    pub freed: AtomicBool,
}

// SAFETY: the bytes are reached through raw pointers only; who may use them when is the host's business, as with Metal.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    const PAGE: usize = 16 << 10;

    /// Zeroes.
    pub fn new(length: usize) -> Self {
        let layout = std::alloc::Layout::from_size_align(length.max(1), Self::PAGE);
        let layout = layout.unwrap_or_else(|_| panic!("a buffer of {length} bytes"));
        // SAFETY: the size is not 0.
        let start = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) });
        Self {
            start: start.unwrap_or_else(|| std::alloc::handle_alloc_error(layout)),
            layout,
            label: Mutex::default(),
            freed: AtomicBool::new(false),
        }
    }

    /// The first byte.
    pub const fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Bytes.
    pub const fn length(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and nobody has the value any more.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// A kernel with its constants.
#[derive(Clone)]
pub struct Pipeline {
    /// Where it is from.
    pub library: Arc<Library>,
    /// Its name.
    pub kernel: String,
    /// What it takes.
    pub parameters: Parameters,
    /// Function constants.
    pub constants: Vec<(usize, Vec<u8>)>,
}

impl Pipeline {
    /// A function constant of the library without a value.
    pub fn missing_constant(&self) -> Option<usize> {
        let set = |index: usize| self.constants.iter().any(|(i, _)| *i == index);
        self.library.constants().into_iter().map(|(index, _)| index).find(|index| !set(*index))
    }
}

#[derive(Clone)]
enum Source {
    Buffer(Arc<Memory>, usize),
    Bytes(Arc<[u8]>),
}

/// What an encoder has bound so far; it stays bound.
#[derive(Clone, Default)]
pub struct Bound {
    /// The kernel.
    pub pipeline: Option<Pipeline>,
    buffers: BTreeMap<usize, Source>,
    memories: BTreeMap<usize, usize>,
}

/// Memory that a threadgroup may have.
const THREADGROUP_MEMORY: usize = 32 << 10;

impl Bound {
    /// Binds a buffer.
    pub fn buffer(&mut self, memory: &Arc<Memory>, offset: usize, index: usize) -> Result<(), String> {
        if index >= 31 {
            return Err(format!("buffer index {index} is not below 31"));
        }
        if offset >= memory.length() || !offset.is_multiple_of(4) {
            return Err(format!(
                "buffer {index} starts at byte {offset} of {}: past the end, or no multiple of 4",
                memory.length()
            ));
        }
        self.buffers.insert(index, Source::Buffer(Arc::clone(memory), offset));
        Ok(())
    }

    /// Binds a copy of some bytes.
    pub fn bytes(&mut self, bytes: &[u8], index: usize) -> Result<(), String> {
        if index >= 31 || bytes.len() > 4096 || bytes.is_empty() {
            return Err(format!(
                "buffer {index} is set from {} bytes: 1 to 4,096 are allowed, and indices below 31",
                bytes.len()
            ));
        }
        self.buffers.insert(index, Source::Bytes(bytes.into()));
        Ok(())
    }

    /// Unbinds a buffer.
    pub fn forget(&mut self, index: usize) {
        self.buffers.remove(&index);
    }

    /// Sets the length of a threadgroup parameter.
    pub fn memory(&mut self, length: usize, index: usize) -> Result<(), String> {
        if !length.is_multiple_of(16) || length > THREADGROUP_MEMORY {
            return Err(format!("threadgroup memory {index} of {length} bytes: at most 32 KiB, a multiple of 16"));
        }
        self.memories.insert(index, length);
        Ok(())
    }

    /// A dispatch of what is bound.
    pub fn dispatch(&self, groups: [u32; 3], threads: [u32; 3]) -> Result<Dispatch, String> {
        let Some(pipeline) = &self.pipeline else { return Err("a dispatch without a pipeline".into()) };
        let kernel = &pipeline.kernel;
        let total: u64 = threads.iter().map(|n| u64::from(*n)).product();
        if groups.contains(&0) || !(1..=1024).contains(&total) {
            return Err(format!("{kernel}: {groups:?} threadgroups of {threads:?} threads"));
        }
        let Parameters { buffers, memories } = &pipeline.parameters;
        if let Some(index) = buffers.iter().find(|index| !self.buffers.contains_key(index)) {
            return Err(format!("{kernel}: buffer {index} is not bound"));
        }
        if let Some(index) = memories.iter().find(|index| !self.memories.contains_key(index)) {
            return Err(format!("{kernel}: threadgroup memory {index} has no length"));
        }
        let buffers = buffers.iter().map(|index| (*index, self.buffers[index].clone())).collect();
        let memories: Vec<_> = memories.iter().map(|index| (*index, self.memories[index])).collect();
        if memories.iter().map(|(_, length)| length).sum::<usize>() > THREADGROUP_MEMORY {
            return Err(format!("{kernel}: more than 32 KiB of threadgroup memory"));
        }
        Ok(Dispatch { pipeline: pipeline.clone(), buffers, memories, groups, threads })
    }
}

/// One dispatch.
pub struct Dispatch {
    pipeline: Pipeline,
    buffers: Vec<(usize, Source)>,
    memories: Vec<(usize, usize)>,
    groups: [u32; 3],
    threads: [u32; 3],
}

impl Dispatch {
    fn run(&self, seed: u64, count: bool) -> Report {
        let binding = |(index, source): &(usize, Source)| match source {
            Source::Buffer(memory, offset) => {
                // SAFETY: the offset is inside the buffer, as `buffer` has checked.
                let at = unsafe { memory.start().as_ptr().add(*offset) };
                Binding { index: *index, at, bytes: memory.length() - offset, writable: true }
            }
            Source::Bytes(bytes) => {
                Binding { index: *index, at: bytes.as_ptr().cast_mut(), bytes: bytes.len(), writable: false }
            }
        };
        let bindings: Vec<Binding> = self.buffers.iter().map(binding).collect();
        let launch = Launch {
            kernel: &self.pipeline.kernel,
            groups: self.groups,
            threads: self.threads,
            bindings: &bindings,
            constants: &self.pipeline.constants,
            memories: &self.memories,
            seed,
            without_barrier: left_out(),
            count,
        };
        // SAFETY: the bindings are whole buffers that this dispatch keeps; that the host uses none of them before the
        // command buffer is done is Metal's rule, which the host keeps.
        unsafe { self.pipeline.library.launch(&launch) }
    }

    /// A buffer that the host has given back.
    fn freed(&self) -> Option<usize> {
        let freed = self.buffers.iter().find(|(_, source)| match source {
            Source::Buffer(memory, _) => memory.freed.load(Ordering::SeqCst),
            Source::Bytes(_) => false,
        });
        freed.map(|(index, _)| *index)
    }

    /// What the report says of each binding.
    fn counts(&self, report: &Report) -> DispatchCounts {
        let binding = |(index, source): &(usize, Source)| {
            let (buffer, offset) = self.place(*index).unwrap_or_default();
            let label = match source {
                Source::Buffer(memory, _) => memory.label.lock().unwrap_or_else(PoisonError::into_inner).clone(),
                Source::Bytes(_) => None,
            };
            let moved = report.moved.iter().find(|(i, ..)| i == index);
            let (_, loads, stores) = moved.copied().unwrap_or_default();
            let ranges = |bit| counts::ranges(report.touched.iter().filter(|t| t.index == *index), bit, offset);
            BindingCounts { index: *index, label, buffer, offset, read: ranges(1), written: ranges(2), loads, stores }
        };
        DispatchCounts {
            kernel: self.pipeline.kernel.clone(),
            groups: self.groups,
            threads: self.threads,
            bindings: self.buffers.iter().map(binding).collect(),
        }
    }

    /// The buffer behind a binding, and where in it the binding starts.
    fn place(&self, index: usize) -> Option<(usize, usize)> {
        self.buffers.iter().find(|(i, _)| *i == index).and_then(|(_, source)| match source {
            Source::Buffer(memory, offset) => Some((memory.start().addr().get(), *offset)),
            Source::Bytes(_) => None,
        })
    }
}

/// What an encoder records.
pub enum Command {
    /// Work.
    Dispatch(Dispatch),
    /// What comes later sees what came before.
    Barrier,
}

#[derive(Default, PartialEq, Eq)]
enum State {
    #[default]
    Empty,
    Encoding {
        concurrent: bool,
    },
    Ended,
    Committed,
}

/// A command buffer.
#[derive(Default)]
pub struct Commands {
    list: Vec<Command>,
    state: State,
    error: Option<String>,
    /// Where the thread that encodes wants to have counts.
    sink: Option<Sink>,
}

impl Commands {
    /// Opens the encoder.
    pub fn begin(&mut self, concurrent: bool) {
        if matches!(self.state, State::Encoding { .. } | State::Committed) {
            self.fail("a second encoder was opened before the first one ended, or after the commit");
        }
        self.list.push(Command::Barrier);
        self.sink = counts::sink();
        self.state = State::Encoding { concurrent };
    }

    /// An encoder is open.
    pub const fn encoding(&self) -> bool {
        matches!(self.state, State::Encoding { .. })
    }

    /// Whether it has run.
    pub fn committed(&self) -> bool {
        self.state == State::Committed
    }

    /// Closes the encoder.
    pub fn end(&mut self) {
        self.state = State::Ended;
    }

    /// Records.
    pub fn push(&mut self, command: Command) {
        self.list.push(command);
        if self.state == (State::Encoding { concurrent: false }) {
            self.list.push(Command::Barrier);
        }
    }

    /// Keeps the first thing that went wrong.
    pub fn fail(&mut self, problem: &str) {
        self.error.get_or_insert_with(|| problem.to_owned());
    }

    /// What went wrong.
    pub fn error(&self) -> Option<String> {
        self.error.clone()
    }

    /// Runs everything, unless encoding failed.
    pub fn run(&mut self) {
        if self.state != State::Ended {
            self.fail("a command buffer was committed twice, or before endEncoding");
        }
        self.state = State::Committed;
        if self.error.is_none() {
            self.error = run(&self.list, self.sink.as_ref()).err();
        }
    }
}

/// Which dispatch has used each byte since the last barrier, and how.
type Used = BTreeMap<(usize, usize), (u8, usize)>;

fn run(list: &[Command], sink: Option<&Sink>) -> Result<(), String> {
    let seed = match mode() {
        Mode::Fast => 0,
        Mode::Checked { seed } => u64::from(seed),
    };
    let mut used = Used::new();
    for (number, command) in list.iter().enumerate() {
        let Command::Dispatch(dispatch) = command else {
            used.clear();
            continue;
        };
        if let Some(index) = dispatch.freed() {
            return Err(format!("{}: buffer {index} was freed while in use", dispatch.pipeline.kernel));
        }
        let report = dispatch.run(if seed == 0 { 0 } else { seed + number as u64 }, sink.is_some());
        if let Some(sink) = sink {
            counts::note(sink, dispatch.counts(&report));
        }
        if let Some(p) = report.problems.first() {
            return Err(format!("{}: {} at line {}: {}", dispatch.pipeline.kernel, p.kind, p.line, p.text));
        }
        for touched in &report.touched {
            let Some((buffer, offset)) = dispatch.place(touched.index) else { continue };
            for (i, bits) in touched.bits.iter().enumerate().filter(|(_, bits)| **bits != 0) {
                let at = offset + touched.first + i;
                let (before, by) = used.entry((buffer, at)).or_insert((0, number));
                if *by != number && *before != 0 && (*before | bits) & 2 != 0 {
                    let Command::Dispatch(other) = &list[*by] else { continue };
                    let (first, second) = (&other.pipeline.kernel, &dispatch.pipeline.kernel);
                    return Err(format!("no barrier between {first} and {second}: both use byte {at} of a buffer"));
                }
                (*before, *by) = (*before | bits, number);
            }
        }
    }
    Ok(())
}
