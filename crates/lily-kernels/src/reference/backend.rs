//! The reference executor as a device, so that a whole engine can run on it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::memory::Memory;
use super::run::{DispatchTouch, run_observed};
use crate::backend::{Backend, BufferId, DeviceError, ExecutableId, Observer, Ticket};
use crate::devices::DeviceKind;
use crate::inputs::StepInputs;
use crate::mapped::MappedFile;
use crate::plan::Plan;
use crate::tensor::Space;

/// A device that runs every step where it is submitted.
#[derive(Default)]
pub struct ReferenceBackend {
    memory: Memory,
    plans: BTreeMap<u32, Arc<Plan>>,
    compiled: u32,
    submitted: u64,
    touches: Vec<DispatchTouch>,
}

impl ReferenceBackend {
    /// A device without weights.
    pub fn new() -> Self {
        Self::default()
    }

    /// What the dispatches of the last step touched.
    pub fn touches(&self) -> &[DispatchTouch] {
        &self.touches
    }

    fn plan(&self, executable: ExecutableId) -> Arc<Plan> {
        Arc::clone(self.plans.get(&executable.0).expect("a submitted plan was compiled and not discarded"))
    }
}

impl Backend for ReferenceBackend {
    fn available_bytes(&self) -> Option<u64> {
        None
    }

    fn kind(&self) -> DeviceKind {
        DeviceKind::Cpu
    }

    fn describe(&self) -> String {
        "reference".to_owned()
    }

    fn open_weights(&mut self, file: Arc<MappedFile>, _: u64) -> Result<(), DeviceError> {
        self.memory.add_weights(file);
        Ok(())
    }

    fn upload_constants(&mut self, values: &[f32]) -> Result<(), DeviceError> {
        self.memory.set_constants(values);
        Ok(())
    }

    fn allocate(&mut self, _what: &'static str, bytes: usize) -> Result<BufferId, DeviceError> {
        Ok(self.memory.allocate(bytes))
    }

    fn free(&mut self, buffer: BufferId) {
        self.memory.free(buffer);
    }

    fn bind_kv(&mut self, pool: BufferId, block_bytes: usize) {
        self.memory.bind_kv(pool, block_bytes);
    }

    fn copy(&mut self, from: (BufferId, usize), to: (BufferId, usize), bytes: usize) {
        let copied = self.memory.buffer(from.0)[from.1..from.1 + bytes].to_vec();
        self.write(to.0, to.1, &copied);
    }

    fn clear(&mut self, buffer: BufferId, offset: usize, bytes: usize) {
        self.memory.buffer_mut(buffer)[offset..offset + bytes].fill(0);
    }

    fn write(&mut self, buffer: BufferId, offset: usize, bytes: &[u8]) {
        self.memory.buffer_mut(buffer)[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn read(&mut self, buffer: BufferId, offset: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.memory.buffer(buffer)[offset..offset + out.len()]);
    }

    fn compile(&mut self, plan: Arc<Plan>) -> Result<ExecutableId, DeviceError> {
        self.memory.prepare(&plan);
        let id = self.compiled;
        self.compiled += 1;
        self.plans.insert(id, plan);
        Ok(ExecutableId(id))
    }

    fn discard(&mut self, executable: ExecutableId) {
        self.plans.remove(&executable.0);
    }

    fn submit(&mut self, executable: ExecutableId, inputs: &StepInputs) -> Result<Ticket, DeviceError> {
        let plan = self.plan(executable);
        self.touches = run_observed(&plan, &mut self.memory, inputs, &mut |_, _, _| ());
        self.submitted += 1;
        Ok(Ticket(self.submitted))
    }

    /// Runs every step to its end: it is for small steps.
    fn interrupt_by(&mut self, _flag: Option<Arc<AtomicBool>>) {}

    fn wait(&mut self, ticket: Ticket) -> Result<(), DeviceError> {
        assert!(ticket.0 <= self.submitted, "a ticket comes from submit");
        Ok(())
    }

    fn logits(&mut self, rows: usize, cols: usize, out: &mut [f32]) {
        let mut bytes = vec![0; 4 * rows * cols];
        self.memory.peek(Space::Logits, 0, &mut bytes);
        for (value, b) in out.iter_mut().zip(bytes.as_chunks().0) {
            *value = f32::from_le_bytes(*b);
        }
    }

    fn sampled(&mut self, token_slot: usize, out: &mut [u32]) {
        for (id, b) in out.iter_mut().zip(self.memory.slot(token_slot).as_chunks().0) {
            *id = u32::from_le_bytes(*b);
        }
    }

    fn poke(&mut self, space: Space, offset: usize, bytes: &[u8]) {
        self.memory.poke(space, offset, bytes);
    }

    fn peek(&mut self, space: Space, offset: usize, out: &mut [u8]) {
        self.memory.peek(space, offset, out);
    }

    fn observe(
        &mut self,
        executable: ExecutableId,
        inputs: &StepInputs,
        observer: &mut dyn Observer,
    ) -> Result<(), DeviceError> {
        let plan = self.plan(executable);
        let mut after = |index: usize, op: &crate::op::Op, memory: &Memory| {
            observer.after(index, op, &|t, rows| memory.look_rows(t, rows));
        };
        self.touches = run_observed(&plan, &mut self.memory, inputs, &mut after);
        Ok(())
    }
}
