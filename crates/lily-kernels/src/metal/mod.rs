//! The Metal device. Kernels are hand-written, one file an op beside its contract; the host here is compiled for macOS,
//! and on Linux against a Metal device in software (feature `software-metal`), which runs the same kernel text.

mod api; // Apple's names
mod device; // buffers and command buffers
mod features; // what the machine can do
mod lower; // op → launches
mod pipelines; // kernels, compiled
mod step; // where operands lie
mod weights; // where matrices lie

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use self::device::{Buffer, Gpu};
use self::step::Step;
use self::weights::Weights;
use crate::backend::{Backend, BufferId, DeviceError, ExecutableId, Feature, Observer, Ticket};
use crate::devices::DeviceKind;
use crate::inputs::StepInputs;
use crate::mapped::MappedFile;
use crate::op::Op;
use crate::ops::group_rows::GroupRows;
use crate::plan::{Dispatch, Plan, Program};
use crate::policy::Abilities;
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
    /// What sampling works in, and what it left in each slot, for the host.
    sampling: Option<Buffer>,
    for_host: [Option<Buffer>; 2],
    /// What changes from step to step (`step::numbers`): of two steps in flight and of one that is being encoded.
    numbers: [Option<Buffer>; 3],
    /// With the length that was asked for.
    buffers: Slots<(Buffer, usize)>,
    kv: Option<(BufferId, usize)>,
    /// What the GPU can do, from the first plan on.
    abilities: Abilities,
    /// Which of each op's legal grids runs.
    variant: usize,
}

impl Memory {
    fn buffer(&self, id: BufferId) -> (&Buffer, usize) {
        let (buffer, bytes) = self.buffers.get(id.0);
        (buffer, *bytes)
    }

    const fn numbers_of(&self, step: u64) -> &Option<Buffer> {
        &self.numbers[step as usize % self.numbers.len()]
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

/// The device. Steps run behind `submit`, in order; the host touches memory only when none that uses it is in flight.
pub struct MetalBackend {
    gpu: Gpu,
    memory: Memory,
    plans: Slots<Arc<Plan>>,
    /// Number of the step that chose what is in each token slot.
    chosen: [u64; 2],
    interrupt: Option<Arc<AtomicBool>>,
}

impl MetalBackend {
    /// The system's Metal device.
    ///
    /// # Errors
    /// There is none.
    pub fn new() -> Result<Self, DeviceError> {
        let memory = Memory::default();
        Ok(Self { gpu: Gpu::open()?, memory, plans: Slots::default(), chosen: [0; 2], interrupt: None })
    }

    /// Names of the kernels that have run.
    pub fn kernels(&self) -> BTreeSet<&'static str> {
        self.gpu.kernels().collect()
    }

    /// What the GPU can do, as far as it decides which kernels run.
    pub fn abilities(&self) -> Abilities {
        self.gpu.features.abilities()
    }

    /// Runs another legal grid of each op than the policy's, which is number 0.
    pub fn run_variant(&mut self, variant: usize) {
        self.memory.variant = variant;
    }

    fn plan(&self, executable: ExecutableId) -> Arc<Plan> {
        Arc::clone(self.plans.get(executable.0))
    }

    /// Brings what is new in a step to the device.
    fn begin(&mut self, plan: &Plan, inputs: &StepInputs) {
        plan.check_inputs(inputs);
        if plan.key.program == Program::Forward && !inputs.tokens_on_device {
            self.gpu.idle();
            let slot = self.memory.token_slots[inputs.token_slot].as_ref().expect("a plan was compiled");
            slot.write(0, bytemuck::cast_slice(&inputs.tokens));
        }
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
            if let Some(old) = old.replace(grown) {
                let grown = buffer(&mut self.memory).as_ref().expect("put there above");
                grown.copy(0, &old, 0, old.len());
                self.gpu.release(&old);
            }
        }
        Ok(())
    }

    /// Submits some dispatches of a plan, in one command buffer unless the host has a part in them; returns the number of
    /// the last one.
    fn run(&mut self, plan: &Plan, range: std::ops::Range<usize>, inputs: &StepInputs) -> Result<u64, DeviceError> {
        let on_host = |d: &Dispatch| plan.is_on_host(&d.op);
        let mut last = self.gpu.next() - 1;
        for part in plan.dispatches[range].chunk_by(|a, b| !on_host(a) && !on_host(b)) {
            match part {
                [Dispatch { op: Op::GroupRows(o), .. }] if on_host(&part[0]) => {
                    self.gpu.wait(last)?;
                    self.group(last, o, inputs, plan.key.switches);
                }
                part => last = self.run_part(part, inputs, plan.key.switches)?,
            }
        }
        Ok(last)
    }

    /// Groups pairs on the host, which has waited for the device and lets it wait.
    fn group(&self, number: u64, o: &GroupRows, inputs: &StepInputs, switches: Switches) {
        let step = Step::new(&self.memory, number, inputs, switches);
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

    /// Submits some dispatches in one command buffer; returns its number.
    fn run_part(&mut self, part: &[Dispatch], inputs: &StepInputs, switches: Switches) -> Result<u64, DeviceError> {
        let number = self.gpu.next();
        let numbers = step::numbers(inputs);
        let place = &mut self.memory.numbers[number as usize % self.memory.numbers.len()];
        if place.as_ref().is_none_or(|old| old.len() < numbers.len()) {
            let grown = self.gpu.buffer("the numbers of a step", numbers.len().next_power_of_two())?;
            if let Some(old) = place.replace(grown) {
                self.gpu.release(&old);
            }
        }
        place.as_ref().expect("made above").write(0, &numbers);
        let step = Step::new(&self.memory, number, inputs, switches);
        let mut prepared = Vec::new();
        for dispatch in part {
            prepared.extend(lower::lower(&step, &dispatch.op).into_iter().map(|launch| (dispatch.stage, launch)));
            if let Op::Sample(_) = dispatch.op {
                self.chosen[1 - inputs.token_slot] = number;
            }
        }
        // An op of several launches in a row takes as many stages.
        prepared.sort_by_key(|(stage, launch)| (*stage, launch.turn));
        let same = |a: &(usize, lower::Prepared), b: &(usize, lower::Prepared)| (a.0, a.1.turn) == (b.0, b.1.turn);
        let stages: Vec<Vec<_>> =
            prepared.chunk_by(same).map(|stage| stage.iter().map(|(_, launch)| launch.launch()).collect()).collect();
        self.gpu.submit(&stages)
    }
}

impl Backend for MetalBackend {
    fn available_bytes(&self) -> Option<u64> {
        Some(self.gpu.available())
    }

    fn kind(&self) -> DeviceKind {
        DeviceKind::Metal
    }

    fn describe(&self) -> String {
        format!("metal ({})", self.gpu.name())
    }

    fn features(&mut self) -> Vec<Feature> {
        let mut rows = self.gpu.features.rows().to_vec();
        let why = "a step is encoded and submitted while the one before runs; a shared event orders them".to_owned();
        rows.push(Feature { name: "two steps in flight", available: true, why });
        rows.push(self.gpu.residency_row());
        rows.push(self.gpu.pipelines.row());
        rows.extend(self.memory.weights.row());
        rows
    }

    fn cache_in(&mut self, folder: &Path) {
        self.gpu.pipelines.archive_in(folder);
    }

    fn open_weights(&mut self, file: Arc<MappedFile>, first: u64) -> Result<(), DeviceError> {
        self.memory.weights.add(&mut self.gpu, file, first)
    }

    fn upload_constants(&mut self, values: &[f32]) -> Result<(), DeviceError> {
        self.gpu.idle();
        let buffer = self.gpu.buffer("the norms and gates", size_of_val(values))?;
        buffer.write(0, bytemuck::cast_slice(values));
        if let Some(old) = self.memory.constants.replace(buffer) {
            self.gpu.release(&old);
        }
        Ok(())
    }

    fn allocate(&mut self, what: &'static str, bytes: usize) -> Result<BufferId, DeviceError> {
        let buffer = self.gpu.buffer(what, bytes)?;
        Ok(BufferId(self.memory.buffers.insert((buffer, bytes))))
    }

    fn free(&mut self, buffer: BufferId) {
        self.gpu.release(self.memory.buffer(buffer).0);
        self.memory.buffers.remove(buffer.0);
    }

    fn bind_kv(&mut self, pool: BufferId, block_bytes: usize) {
        self.memory.kv = Some((pool, block_bytes));
    }

    fn copy(&mut self, from: (BufferId, usize), to: (BufferId, usize), bytes: usize) {
        self.gpu.idle();
        self.memory.buffer(to.0).0.copy(to.1, self.memory.buffer(from.0).0, from.1, bytes);
    }

    fn clear(&mut self, buffer: BufferId, offset: usize, bytes: usize) {
        self.gpu.idle();
        self.memory.buffer(buffer).0.write(offset, &vec![0; bytes]);
    }

    fn write(&mut self, buffer: BufferId, offset: usize, bytes: &[u8]) {
        self.gpu.idle();
        self.memory.buffer(buffer).0.write(offset, bytes);
    }

    fn read(&mut self, buffer: BufferId, offset: usize, out: &mut [u8]) {
        self.gpu.idle();
        self.memory.buffer(buffer).0.read(offset, out);
    }

    fn compile(&mut self, plan: Arc<Plan>) -> Result<ExecutableId, DeviceError> {
        self.gpu.idle();
        plan.check_disjoint();
        if let Some(reason) = plan.dispatches.iter().find_map(|d| lower::unsupported(&d.op)) {
            return Err(DeviceError::Unsupported { device: "metal", reason });
        }
        self.memory.abilities = self.abilities();
        for dispatch in &plan.dispatches {
            self.memory.weights.prepare(&mut self.gpu, &dispatch.op)?;
        }
        let rows = plan.key.token_bucket.max(plan.key.output_bucket());
        self.grow("scratch memory", |memory| &mut memory.arena, plan.arena_bytes)?;
        self.grow("logits", |memory| &mut memory.logits, plan.logits_bytes)?;
        self.grow("token ids", |memory| &mut memory.token_slots[0], rows * DType::U32.bytes())?;
        self.grow("token ids", |memory| &mut memory.token_slots[1], rows * DType::U32.bytes())?;
        for dispatch in &plan.dispatches {
            if let Op::Sample(o) = &dispatch.op {
                let scratch = lower::sample::Scratch::of(o).bytes;
                self.grow("scratch memory of sampling", |memory| &mut memory.sampling, scratch)?;
                self.grow("chosen ids", |memory| &mut memory.for_host[0], o.tokens.bytes())?;
                self.grow("chosen ids", |memory| &mut memory.for_host[1], o.tokens.bytes())?;
            }
        }
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
        self.begin(&plan, inputs);
        Ok(Ticket(self.run(&plan, 0..plan.dispatches.len(), inputs)?))
    }

    fn interrupt_by(&mut self, flag: Option<Arc<AtomicBool>>) {
        self.interrupt = flag;
    }

    fn wait(&mut self, ticket: Ticket) -> Result<(), DeviceError> {
        assert!(ticket.0 < self.gpu.next(), "a ticket of another device");
        self.gpu.wait(ticket.0)
    }

    fn seconds(&self, ticket: Ticket) -> Option<f64> {
        self.gpu.seconds(ticket.0)
    }

    fn runs_ahead(&self) -> bool {
        true
    }

    fn logits(&mut self, rows: usize, cols: usize, out: &mut [f32]) {
        self.gpu.idle();
        assert_eq!(out.len(), rows * cols);
        self.memory.flat(Space::Logits).read(0, bytemuck::cast_slice_mut(out));
    }

    fn sampled(&mut self, token_slot: usize, out: &mut [u32]) {
        // Steps after that one may be in flight: they use other memory. An error is told at the next call that can.
        self.gpu.reach(self.chosen[token_slot]);
        let chosen = self.memory.for_host[token_slot].as_ref().expect("a sampling plan was compiled");
        chosen.read(0, bytemuck::cast_slice_mut(out));
    }

    fn poke(&mut self, space: Space, offset: usize, bytes: &[u8]) {
        self.gpu.idle();
        self.memory.flat(space).write(offset, bytes);
    }

    fn peek(&mut self, space: Space, offset: usize, out: &mut [u8]) {
        self.gpu.idle();
        self.memory.flat(space).read(offset, out);
    }

    fn observe(
        &mut self,
        executable: ExecutableId,
        inputs: &StepInputs,
        observer: &mut dyn Observer,
    ) -> Result<(), DeviceError> {
        let plan = self.plan(executable);
        self.begin(&plan, inputs);
        for (index, dispatch) in plan.dispatches.iter().enumerate() {
            let number = self.run(&plan, index..index + 1, inputs)?;
            self.gpu.wait(number)?;
            let step = Step::new(&self.memory, number, inputs, plan.key.switches);
            observer.after(index, &dispatch.op, &|t: &Tensor, rows| {
                let mut values = vec![0.0f32; rows * t.cols];
                let place = step.at(t);
                place.buffer.read(place.offset, bytemuck::cast_slice_mut(&mut values));
                values
            });
        }
        Ok(())
    }
}
