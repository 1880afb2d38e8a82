//! The CPU device: the default where there is no GPU, and the one whose bytes are the reference for every
//! reorganisation of work (chunks, threads, batches, instruction sets). Runs a plan's dispatches in order, each
//! spread over a thread pool.

pub(crate) mod columns; // columns of a matrix that one task may write
pub mod isa; // instruction sets
pub(crate) mod lanes; // 16-lane arithmetic, exp
pub mod normalizer; // ln Σ eˣ, for the host
pub(crate) mod pool; // worker threads

mod buffer; // device memory
mod lower; // op → kernel
mod memory; // how much there is
mod step; // one step's view of device memory

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use self::buffer::Buffer;
use self::isa::Isa;
use self::lower::Needs;
use self::pool::{Parts, Pool};
use self::step::Step;
use crate::backend::{Backend, BufferId, DeviceError, ExecutableId, Observer, Ticket};
use crate::devices::DeviceKind;
use crate::inputs::StepInputs;
use crate::mapped::MappedFile;
use crate::ops::sample::simd::Scratch as SampleScratch;
use crate::plan::{Plan, Program};
use crate::slots::Slots;
use crate::tensor::{DType, Space, Tensor};

/// What one thread needs besides its stack.
struct Scratch {
    /// Decoded weights, KV blocks, scores: whatever the running kernel wants.
    kernel: lanes::Scratch,
    /// Values between the parts of a fused op.
    tile: Vec<f32>,
    /// For sampling; thread 0 only.
    sample: SampleScratch,
    /// Experts that have rows; thread 0 only.
    active: Vec<u32>,
}

impl Scratch {
    fn new() -> Self {
        Self { kernel: lanes::Scratch::new(0), tile: Vec::new(), sample: SampleScratch::default(), active: Vec::new() }
    }
}

/// Everything that steps read and write.
#[derive(Default)]
struct Memory {
    files: Vec<Arc<MappedFile>>,
    constants: Buffer,
    arena: Buffer,
    logits: Buffer,
    token_slots: [Buffer; 2],
    buffers: Slots<Buffer>,
    kv: Option<(BufferId, usize)>,
    scratch: UnsafeCell<Vec<Scratch>>,
}

// SAFETY: the cell is reached through `scratch_parts` only, during a step, which has the device to itself.
unsafe impl Sync for Memory {}

impl Memory {
    fn buffer(&self, id: BufferId) -> &Buffer {
        self.buffers.get(id.0)
    }

    fn buffer_mut(&mut self, id: BufferId) -> &mut Buffer {
        self.buffers.get_mut(id.0)
    }

    fn scratch_parts(&self) -> Parts<'_, Scratch> {
        // SAFETY: called once per dispatch, while no earlier dispatch's parts are alive; a thread takes its own part.
        Parts::new(unsafe { (*self.scratch.get()).as_mut_slice() })
    }

    /// The flat buffer behind a space, for `poke` and `peek`.
    fn flat(&mut self, space: Space) -> &mut Buffer {
        match space {
            Space::Arena => &mut self.arena,
            Space::Logits => &mut self.logits,
            Space::Tokens => &mut self.token_slots[0],
            Space::NextTokens => &mut self.token_slots[1],
            Space::Temp(_) | Space::Constants | Space::Weights(_) | Space::StateIn | Space::StateOut | Space::Kv => {
                unreachable!("{space:?} is set through its own call")
            }
        }
    }
}

/// The device.
pub struct CpuBackend {
    isa: Isa,
    pool: Pool,
    memory: Memory,
    plans: Slots<Arc<Plan>>,
    steps: u64,
    interrupt: Option<Arc<AtomicBool>>,
}

impl CpuBackend {
    /// A device of `threads` threads; `None` takes the cores this process may use (affinity and cgroup quota).
    ///
    /// # Errors
    /// The system starts no more threads.
    pub fn new(threads: Option<usize>) -> Result<Self, DeviceError> {
        Self::with_isa(threads, Isa::detect())
    }

    /// The same on one of `Isa::available`.
    ///
    /// # Errors
    /// The system starts no more threads.
    pub fn with_isa(threads: Option<usize>, isa: Isa) -> Result<Self, DeviceError> {
        let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let pool = Pool::new(threads.unwrap_or_else(cores).max(1)).map_err(DeviceError::Threads)?;
        let scratch = (0..pool.threads()).map(|_| Scratch::new()).collect();
        let memory = Memory { scratch: UnsafeCell::new(scratch), ..Memory::default() };
        Ok(Self { isa, pool, memory, plans: Slots::default(), steps: 0, interrupt: None })
    }

    fn plan(&self, executable: ExecutableId) -> Arc<Plan> {
        Arc::clone(self.plans.get(executable.0))
    }

    fn grow_scratch(&mut self, plan: &Plan) {
        let needs = plan.dispatches.iter().map(|d| lower::needs(&d.op)).fold(Needs::NONE, Needs::most);
        let scratch = self.memory.scratch.get_mut();
        for scratch in scratch.iter_mut() {
            scratch.kernel.grow(needs.kernel_bytes);
            scratch.tile.resize(needs.tile_floats.max(scratch.tile.len()), 0.0);
        }
        let first = &mut scratch[0];
        first.sample.grow(needs.vocab);
        first.active.reserve(needs.experts.saturating_sub(first.active.len()));
    }

    fn begin(&mut self, plan: &Plan, inputs: &StepInputs) {
        plan.check_inputs(inputs);
        if plan.key.program == Program::Forward && !inputs.tokens_on_device {
            let bytes = bytemuck::cast_slice(&inputs.tokens);
            self.memory.token_slots[inputs.token_slot].bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        }
    }
}

impl Backend for CpuBackend {
    fn available_bytes(&self) -> Option<u64> {
        memory::available()
    }

    fn kind(&self) -> DeviceKind {
        DeviceKind::Cpu
    }

    fn describe(&self) -> String {
        let threads = self.pool.threads();
        format!("cpu ({}, {threads} thread{})", self.isa.name(), if threads == 1 { "" } else { "s" })
    }

    fn open_weights(&mut self, file: Arc<MappedFile>) -> Result<(), DeviceError> {
        self.memory.files.push(file);
        Ok(())
    }

    fn upload_constants(&mut self, values: &[f32]) -> Result<(), DeviceError> {
        self.memory.constants = Buffer::new("the norms and gates", size_of_val(values))?;
        self.memory.constants.bytes_mut().copy_from_slice(bytemuck::cast_slice(values));
        Ok(())
    }

    fn allocate(&mut self, what: &'static str, bytes: usize) -> Result<BufferId, DeviceError> {
        let buffer = Buffer::new(what, bytes)?;
        Ok(BufferId(self.memory.buffers.insert(buffer)))
    }

    fn free(&mut self, buffer: BufferId) {
        self.memory.buffers.remove(buffer.0);
    }

    fn bind_kv(&mut self, pool: BufferId, block_bytes: usize) {
        self.memory.kv = Some((pool, block_bytes));
    }

    fn copy(&mut self, from: (BufferId, usize), to: (BufferId, usize), bytes: usize) {
        if from.0 == to.0 {
            let buffer = self.memory.buffer_mut(from.0).bytes_mut();
            buffer.copy_within(from.1..from.1 + bytes, to.1);
            return;
        }
        let [source, target] = self.memory.buffers.get_both([from.0.0, to.0.0]);
        target.bytes_mut()[to.1..to.1 + bytes].copy_from_slice(&source.bytes()[from.1..from.1 + bytes]);
    }

    fn clear(&mut self, buffer: BufferId, offset: usize, bytes: usize) {
        self.memory.buffer_mut(buffer).bytes_mut()[offset..offset + bytes].fill(0);
    }

    fn write(&mut self, buffer: BufferId, offset: usize, bytes: &[u8]) {
        self.memory.buffer_mut(buffer).bytes_mut()[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn read(&mut self, buffer: BufferId, offset: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.memory.buffer(buffer).bytes()[offset..offset + out.len()]);
    }

    fn compile(&mut self, plan: Arc<Plan>) -> Result<ExecutableId, DeviceError> {
        plan.check_disjoint();
        if let Some(d) = plan.dispatches.iter().find(|d| !lower::is_supported(&d.op)) {
            let reason = format!("it has no {}: its parts cost no dispatch here", d.op.kind().name());
            return Err(DeviceError::Unsupported { device: "cpu", reason });
        }
        let rows = plan.key.token_bucket.max(plan.key.output_bucket());
        let memory = &mut self.memory;
        let [slot_0, slot_1] = &mut memory.token_slots;
        for (buffer, bytes) in [
            (&mut memory.arena, plan.arena_bytes),
            (&mut memory.logits, plan.logits_bytes),
            (slot_0, rows * DType::U32.bytes()),
            (slot_1, rows * DType::U32.bytes()),
        ] {
            if buffer.len() < bytes {
                let mut grown = Buffer::new("scratch memory", bytes)?;
                grown.bytes_mut()[..buffer.len()].copy_from_slice(buffer.bytes());
                *buffer = grown;
            }
        }
        self.grow_scratch(&plan);
        Ok(ExecutableId(self.plans.insert(plan)))
    }

    fn discard(&mut self, executable: ExecutableId) {
        self.plans.remove(executable.0);
    }

    fn submit(&mut self, executable: ExecutableId, inputs: &StepInputs) -> Result<Ticket, DeviceError> {
        let plan = self.plan(executable);
        self.begin(&plan, inputs);
        let step = Step::new(&mut self.memory, inputs);
        for dispatch in &plan.dispatches {
            if self.interrupt.as_ref().is_some_and(|flag| flag.load(Ordering::Relaxed)) {
                return Err(DeviceError::Interrupted);
            }
            lower::run(&step, self.isa, &self.pool, &dispatch.op);
        }
        self.steps += 1;
        Ok(Ticket(self.steps))
    }

    fn interrupt_by(&mut self, flag: Option<Arc<AtomicBool>>) {
        self.interrupt = flag;
    }

    fn wait(&mut self, ticket: Ticket) -> Result<(), DeviceError> {
        assert!(ticket.0 <= self.steps, "a ticket of another device");
        Ok(())
    }

    fn logits(&mut self, rows: usize, cols: usize, out: &mut [f32]) {
        let bytes = &self.memory.logits.bytes()[..rows * cols * size_of::<f32>()];
        out.copy_from_slice(bytemuck::cast_slice(bytes));
    }

    fn sampled(&mut self, token_slot: usize, out: &mut [u32]) {
        let bytes = &self.memory.token_slots[token_slot].bytes()[..size_of_val(out)];
        out.copy_from_slice(bytemuck::cast_slice(bytes));
    }

    fn poke(&mut self, space: Space, offset: usize, bytes: &[u8]) {
        self.memory.flat(space).bytes_mut()[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn peek(&mut self, space: Space, offset: usize, out: &mut [u8]) {
        let len = out.len();
        out.copy_from_slice(&self.memory.flat(space).bytes()[offset..offset + len]);
    }

    fn observe(
        &mut self,
        executable: ExecutableId,
        inputs: &StepInputs,
        observer: &mut dyn Observer,
    ) -> Result<(), DeviceError> {
        let plan = self.plan(executable);
        self.begin(&plan, inputs);
        let step = Step::new(&mut self.memory, inputs);
        for (index, dispatch) in plan.dispatches.iter().enumerate() {
            lower::run(&step, self.isa, &self.pool, &dispatch.op);
            observer.after(index, &dispatch.op, &|t: &Tensor, rows| step.read::<f32>(t, rows).to_vec());
        }
        self.steps += 1;
        Ok(())
    }
}
