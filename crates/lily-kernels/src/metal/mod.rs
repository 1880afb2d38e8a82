//! The Metal device. Kernels are hand-written, one file an op beside its contract; the host here is compiled for macOS,
//! and on Linux against a Metal device in software (feature `software-metal`), which runs the same kernel text.

mod api; // Apple's names
mod device; // buffers, pipelines, command buffers
mod lower; // op → launches
mod step; // where operands lie
mod weights; // where matrices lie

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use self::device::{Buffer, Gpu};
use self::step::Step;
use self::weights::Weights;
use crate::backend::{Backend, BufferId, DeviceError, ExecutableId, Observer, Ticket};
use crate::cpu::isa::Isa;
use crate::devices::DeviceKind;
use crate::inputs::StepInputs;
use crate::mapped::MappedFile;
use crate::op::Op;
use crate::ops::group_rows::GroupRows;
use crate::ops::sample::Sample;
use crate::ops::sample::simd::{Scratch, choose};
use crate::plan::{Dispatch, Plan, Program};
use crate::slots::Slots;
use crate::switches::Switches;
use crate::tensor::{DType, Space, Tensor};

/// Text of each library, by the name of its last file.
pub fn libraries() -> impl Iterator<Item = (&'static str, String)> {
    lower::sources::ALL.iter().filter_map(|source| Some((source.0.last()?.0, source.text())))
}

/// Everything that steps read and write.
#[derive(Default)]
struct Memory {
    weights: Weights,
    constants: Option<Buffer>,
    arena: Option<Buffer>,
    logits: Option<Buffer>,
    token_slots: [Option<Buffer>; 2],
    /// What changes from step to step: `step::numbers`.
    numbers: Option<Buffer>,
    /// With the length that was asked for.
    buffers: Slots<(Buffer, usize)>,
    kv: Option<(BufferId, usize)>,
    /// Which of each op's legal grids runs.
    variant: usize,
}

impl Memory {
    fn buffer(&self, id: BufferId) -> (&Buffer, usize) {
        let (buffer, bytes) = self.buffers.get(id.0);
        (buffer, *bytes)
    }

    /// The flat buffer behind a space, for `poke` and `peek`.
    fn flat(&self, space: Space) -> &Buffer {
        let buffer = match space {
            Space::Arena => &self.arena,
            Space::Logits => &self.logits,
            Space::Tokens => &self.token_slots[0],
            Space::NextTokens => &self.token_slots[1],
            Space::Temp(_) | Space::Constants | Space::Weights(_) | Space::StateIn | Space::StateOut | Space::Kv => {
                unreachable!("{space:?} is set through its own call")
            }
        };
        buffer.as_ref().expect("a plan was compiled")
    }
}

/// The device. A step has run when `submit` returns.
pub struct MetalBackend {
    gpu: Gpu,
    memory: Memory,
    plans: Slots<Arc<Plan>>,
    steps: u64,
    interrupt: Option<Arc<AtomicBool>>,
}

impl MetalBackend {
    /// The system's Metal device.
    ///
    /// # Errors
    /// There is none.
    pub fn new() -> Result<Self, DeviceError> {
        Ok(Self { gpu: Gpu::open()?, memory: Memory::default(), plans: Slots::default(), steps: 0, interrupt: None })
    }

    /// Runs another legal grid of each op than the policy's, which is number 0.
    pub fn run_variant(&mut self, variant: usize) {
        self.memory.variant = variant;
    }

    fn plan(&self, executable: ExecutableId) -> Arc<Plan> {
        Arc::clone(self.plans.get(executable.0))
    }

    /// Brings what is new in a step to the device.
    fn begin(&mut self, plan: &Plan, inputs: &StepInputs) -> Result<(), DeviceError> {
        plan.check_inputs(inputs);
        if plan.key.program == Program::Forward && !inputs.tokens_on_device {
            let slot = self.memory.token_slots[inputs.token_slot].as_ref().expect("a plan was compiled");
            slot.write(0, bytemuck::cast_slice(&inputs.tokens));
        }
        let numbers = step::numbers(inputs);
        self.grow("the numbers of a step", |memory| &mut memory.numbers, numbers.len())?;
        self.memory.numbers.as_ref().expect("grown above").write(0, &numbers);
        Ok(())
    }

    /// Makes a buffer at least so long; its bytes stay.
    fn grow(
        &mut self,
        what: &'static str,
        buffer: impl Fn(&mut Memory) -> &mut Option<Buffer>,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        let old = buffer(&mut self.memory);
        if old.as_ref().is_none_or(|old| old.len() < bytes) {
            let grown = self.gpu.buffer(what, bytes)?;
            if let Some(old) = old {
                grown.copy(0, old, 0, old.len());
            }
            *old = Some(grown);
        }
        Ok(())
    }

    /// Chooses the tokens on the host, which shares memory with the GPU.
    fn sample(&self, o: &Sample, inputs: &StepInputs, switches: Switches) {
        let step = Step::new(&self.memory, inputs, switches);
        let (logits, tokens) = (step.at(&o.logits), step.at(&o.tokens));
        let mut row = vec![0.0f32; o.logits.cols];
        let mut scratch = Scratch::default();
        scratch.grow(o.logits.cols);
        for (i, how) in inputs.sampling.iter().enumerate() {
            logits.buffer.read(logits.offset + i * o.logits.row_bytes(), bytemuck::cast_slice_mut(&mut row));
            let id = choose(Isa::detect(), &row, inputs.edits(i), how, &mut scratch);
            tokens.buffer.write(tokens.offset + i * o.tokens.row_bytes(), &id.to_le_bytes());
        }
    }

    /// Runs some dispatches of a plan.
    fn run(&mut self, plan: &Plan, range: std::ops::Range<usize>, inputs: &StepInputs) -> Result<(), DeviceError> {
        let dispatches = &plan.dispatches[range];
        if let [Dispatch { op: Op::Sample(o), .. }] = dispatches {
            self.sample(o, inputs, plan.key.switches);
            return Ok(());
        }
        let on_host = |d: &Dispatch| plan.is_on_host(&d.op);
        for part in dispatches.chunk_by(|a, b| !on_host(a) && !on_host(b)) {
            match part {
                [Dispatch { op: Op::GroupRows(o), .. }] if on_host(&part[0]) => {
                    self.group(o, inputs, plan.key.switches)
                }
                part => self.run_part(part, inputs, plan.key.switches)?,
            }
        }
        Ok(())
    }

    /// Groups pairs on the host, which waits for the device and lets it wait.
    fn group(&self, o: &GroupRows, inputs: &StepInputs, switches: Switches) {
        let step = Step::new(&self.memory, inputs, switches);
        let mut experts = vec![0u32; step.tokens() * o.groups.top_k()];
        let place = step.at(&o.experts);
        place.buffer.read(place.offset, bytemuck::cast_slice_mut(&mut experts));
        let mut order = Vec::from_iter(0..experts.len() as u32);
        order.sort_by_key(|pair| experts[*pair as usize]);
        let below = |expert: usize| order.partition_point(|pair| (experts[*pair as usize] as usize) < expert) as u32;
        let offsets = Vec::from_iter((0..=o.groups.experts()).map(below));
        for (t, values) in [(&o.groups.offsets, &offsets), (&o.groups.order, &order)] {
            let place = step.at(t);
            place.buffer.write(place.offset, bytemuck::cast_slice(values));
        }
    }

    /// Runs some dispatches in one command buffer.
    fn run_part(&mut self, part: &[Dispatch], inputs: &StepInputs, switches: Switches) -> Result<(), DeviceError> {
        let step = Step::new(&self.memory, inputs, switches);
        let prepared: Vec<_> = part.iter().map(|d| (d.stage, lower::lower(&step, &d.op))).collect();
        let mut stages = Vec::new();
        for of_stage in prepared.chunk_by(|a, b| a.0 == b.0) {
            stages
                .push(of_stage.iter().flat_map(|(_, launches)| launches.iter().map(lower::Prepared::launch)).collect());
        }
        self.gpu.run(&stages)
    }
}

impl Backend for MetalBackend {
    fn available_bytes(&self) -> Option<u64> {
        Some(self.gpu.working_set())
    }

    fn kind(&self) -> DeviceKind {
        DeviceKind::Metal
    }

    fn describe(&self) -> String {
        format!("metal ({})", self.gpu.name())
    }

    fn open_weights(&mut self, file: Arc<MappedFile>) -> Result<(), DeviceError> {
        let buffer = self.gpu.buffer("a weight file", file.bytes().len())?;
        buffer.write(0, file.bytes());
        self.memory.weights.add(buffer);
        Ok(())
    }

    fn upload_constants(&mut self, values: &[f32]) -> Result<(), DeviceError> {
        let buffer = self.gpu.buffer("the norms and gates", size_of_val(values))?;
        buffer.write(0, bytemuck::cast_slice(values));
        self.memory.constants = Some(buffer);
        Ok(())
    }

    fn allocate(&mut self, what: &'static str, bytes: usize) -> Result<BufferId, DeviceError> {
        let buffer = self.gpu.buffer(what, bytes)?;
        Ok(BufferId(self.memory.buffers.insert((buffer, bytes))))
    }

    fn free(&mut self, buffer: BufferId) {
        self.memory.buffers.remove(buffer.0);
    }

    fn bind_kv(&mut self, pool: BufferId, block_bytes: usize) {
        self.memory.kv = Some((pool, block_bytes));
    }

    fn copy(&mut self, from: (BufferId, usize), to: (BufferId, usize), bytes: usize) {
        self.memory.buffer(to.0).0.copy(to.1, self.memory.buffer(from.0).0, from.1, bytes);
    }

    fn clear(&mut self, buffer: BufferId, offset: usize, bytes: usize) {
        self.memory.buffer(buffer).0.write(offset, &vec![0; bytes]);
    }

    fn write(&mut self, buffer: BufferId, offset: usize, bytes: &[u8]) {
        self.memory.buffer(buffer).0.write(offset, bytes);
    }

    fn read(&mut self, buffer: BufferId, offset: usize, out: &mut [u8]) {
        self.memory.buffer(buffer).0.read(offset, out);
    }

    fn compile(&mut self, plan: Arc<Plan>) -> Result<ExecutableId, DeviceError> {
        plan.check_disjoint();
        if let Some(reason) = plan.dispatches.iter().find_map(|d| lower::unsupported(&d.op)) {
            return Err(DeviceError::Unsupported { device: "metal", reason });
        }
        for dispatch in &plan.dispatches {
            self.memory.weights.prepare(&self.gpu, &dispatch.op)?;
        }
        let rows = plan.key.token_bucket.max(plan.key.output_bucket());
        self.grow("scratch memory", |memory| &mut memory.arena, plan.arena_bytes)?;
        self.grow("logits", |memory| &mut memory.logits, plan.logits_bytes)?;
        self.grow("token ids", |memory| &mut memory.token_slots[0], rows * DType::U32.bytes())?;
        self.grow("token ids", |memory| &mut memory.token_slots[1], rows * DType::U32.bytes())?;
        Ok(ExecutableId(self.plans.insert(plan)))
    }

    fn discard(&mut self, executable: ExecutableId) {
        self.plans.remove(executable.0);
    }

    fn submit(&mut self, executable: ExecutableId, inputs: &StepInputs) -> Result<Ticket, DeviceError> {
        if self.interrupt.as_ref().is_some_and(|flag| flag.load(Ordering::Relaxed)) {
            return Err(DeviceError::Interrupted);
        }
        let plan = self.plan(executable);
        self.begin(&plan, inputs)?;
        self.run(&plan, 0..plan.dispatches.len(), inputs)?;
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
        assert_eq!(out.len(), rows * cols);
        self.memory.flat(Space::Logits).read(0, bytemuck::cast_slice_mut(out));
    }

    fn sampled(&mut self, token_slot: usize, out: &mut [u32]) {
        let slot = self.memory.token_slots[token_slot].as_ref().expect("a plan was compiled");
        slot.read(0, bytemuck::cast_slice_mut(out));
    }

    fn poke(&mut self, space: Space, offset: usize, bytes: &[u8]) {
        self.memory.flat(space).write(offset, bytes);
    }

    fn peek(&mut self, space: Space, offset: usize, out: &mut [u8]) {
        self.memory.flat(space).read(offset, out);
    }

    fn observe(
        &mut self,
        executable: ExecutableId,
        inputs: &StepInputs,
        observer: &mut dyn Observer,
    ) -> Result<(), DeviceError> {
        let plan = self.plan(executable);
        self.begin(&plan, inputs)?;
        for (index, dispatch) in plan.dispatches.iter().enumerate() {
            self.run(&plan, index..index + 1, inputs)?;
            let step = Step::new(&self.memory, inputs, plan.key.switches);
            observer.after(index, &dispatch.op, &|t: &Tensor, rows| {
                let mut values = vec![0.0f32; rows * t.cols];
                let place = step.at(t);
                place.buffer.read(place.offset, bytemuck::cast_slice_mut(&mut values));
                values
            });
        }
        self.steps += 1;
        Ok(())
    }
}
