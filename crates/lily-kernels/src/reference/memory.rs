//! All memory of a device as plain bytes, and the checks on each access: inside the op's declared ranges, nothing read
//! before it is written. Elements and shapes are the business of `tensors.rs`.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::byte_set::{ByteSet, Place};
use crate::backend::BufferId;
use crate::inputs::{SequenceInputs, StepInputs};
use crate::mapped::MappedFile;
use crate::op::{Access, Op};
use crate::plan::Plan;
use crate::tensor::{DType, Space};

/// Fills memory that nothing has written: NaN as f32, f16 and bf16, out of range as an index.
pub const POISON: u8 = 0xFF;

/// Which of the ranges that a space stands for is meant.
#[derive(Clone, Copy)]
pub(super) enum At<'a> {
    /// The space has one range only.
    Step,
    /// A sequence's recurrent state.
    State(&'a SequenceInputs),
    /// A KV block.
    Block(u32),
}

/// One counted write of an op.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Store {
    /// Where, as the op declares it.
    pub declared: Access,
    /// Where really.
    pub place: Place,
    /// First byte within the place.
    pub start: usize,
    /// Type of the elements.
    pub dtype: DType,
}

/// What the running op declared, and what it has touched so far.
struct Current {
    name: &'static str,
    reads: Vec<Access>,
    writes: Vec<Access>,
    read: ByteSet,
    written: ByteSet,
}

/// The reference device's memory.
#[derive(Default)]
pub struct Memory {
    arena: Vec<u8>,
    constants: Vec<u8>,
    weights: Vec<Arc<MappedFile>>,
    buffers: BTreeMap<BufferId, Vec<u8>>,
    next_buffer: u32,
    kv: Option<(BufferId, usize)>,
    slots: [Vec<u8>; 2],
    logits: Vec<u8>,
    temps: HashMap<u32, Vec<u8>>,
    /// Arena bytes that this step (or a poke) has written.
    stored: ByteSet,
    stored_temps: ByteSet,
    /// Ids that came with the step, unless it takes those of a slot.
    step_tokens: Option<Vec<u8>>,
    token_slot: usize,
    current: Option<Current>,
    stores: Vec<Store>,
}

impl Memory {
    /// Empty memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `Space::Weights(n)`; n counts the calls from 0.
    pub fn add_weights(&mut self, file: Arc<MappedFile>) {
        self.weights.push(file);
    }

    /// Sets `Space::Constants`.
    pub fn set_constants(&mut self, values: &[f32]) {
        self.constants = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    }

    /// A zeroed buffer.
    pub fn allocate(&mut self, bytes: usize) -> BufferId {
        let id = BufferId(self.next_buffer);
        self.next_buffer += 1;
        self.buffers.insert(id, vec![0; bytes]);
        id
    }

    /// Gives a buffer back.
    pub fn free(&mut self, buffer: BufferId) {
        self.buffers.remove(&buffer).expect("a freed buffer was allocated and not freed before");
    }

    /// Names the buffer of KV blocks and the bytes of one block.
    pub fn bind_kv(&mut self, pool: BufferId, block_bytes: usize) {
        self.kv = Some((pool, block_bytes));
    }

    /// A buffer's contents.
    pub fn buffer(&self, buffer: BufferId) -> &[u8] {
        self.bytes(Place::Buffer(buffer))
    }

    /// A buffer's contents, to change them.
    pub fn buffer_mut(&mut self, buffer: BufferId) -> &mut Vec<u8> {
        self.buffers.get_mut(&buffer).expect("a buffer in use was allocated and not freed")
    }

    /// Grows what a plan's size decides: arena, token slots, logits.
    pub fn prepare(&mut self, plan: &Plan) {
        let grow = |memory: &mut Vec<u8>, bytes: usize| {
            let bytes = bytes.max(memory.len());
            memory.resize(bytes, POISON);
        };
        grow(&mut self.arena, plan.arena_bytes);
        grow(&mut self.logits, plan.logits_bytes);
        let slots = 4 * plan.key.token_bucket.max(plan.key.output_bucket());
        self.slots.iter_mut().for_each(|slot| grow(slot, slots));
    }

    /// Writes from outside a step: `Arena`, `Logits`, `Tokens` (slot 0) or `NextTokens` (slot 1).
    pub fn poke(&mut self, space: Space, offset: usize, bytes: &[u8]) {
        let place = poked(space);
        if place == Place::Arena {
            self.stored.insert(place, offset..offset + bytes.len());
        }
        self.bytes_mut(place)[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// Reads what `poke` writes.
    pub fn peek(&self, space: Space, offset: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.bytes(poked(space))[offset..offset + out.len()]);
    }

    /// The bytes of a token slot.
    pub fn slot(&self, slot: usize) -> &[u8] {
        &self.slots[slot]
    }

    /// A range of a space that has one range only, from outside a step.
    pub(super) fn look(&self, access: Access) -> &[u8] {
        let (place, offset) = self.resolve(access.space, access.offset, At::Step);
        &self.bytes(place)[offset..offset + access.bytes]
    }

    /// Settles what the virtual spaces stand for.
    pub(super) fn begin_step(&mut self, inputs: &StepInputs) {
        self.token_slot = inputs.token_slot;
        let ids = || inputs.tokens.iter().flat_map(|id| id.to_le_bytes()).collect();
        self.step_tokens = (!inputs.tokens_on_device).then(ids);
    }

    /// Nothing in the arena outlives a step; its bytes stay for `peek`, but no later step may read them.
    pub(super) fn end_step(&mut self) {
        self.stored.clear();
    }

    /// Starts checking and counting for one op.
    pub(super) fn begin_op(&mut self, op: &Op) {
        let (contract, name) = (op.contract(), op.kind().name());
        let (reads, writes) = (contract.reads(), contract.writes());
        for write in &writes {
            assert!(!reads.iter().any(|r| r.overlaps(write)), "{name} works in place: {write:?}");
        }
        let (read, written) = Default::default();
        self.stores.clear();
        self.current = Some(Current { name, reads, writes, read, written });
    }

    /// Distinct bytes read and written since `begin_op`.
    pub(super) fn end_op(&mut self) -> (usize, usize) {
        self.temps.clear();
        self.stored_temps.clear();
        self.current.take().map_or((0, 0), |c| (c.read.len(), c.written.len()))
    }

    /// The counted writes of the last op.
    pub(crate) fn stores(&self) -> &[Store] {
        &self.stores
    }

    /// A checked and counted read.
    pub(super) fn load(&mut self, access: Access, at: At<'_>) -> &[u8] {
        let Access { space, offset, bytes } = access;
        let (place, start) = self.resolve(space, offset, at);
        let range = start..start + bytes;
        let name = self.current.as_ref().map_or("test", |c| c.name);
        let stored = match place {
            Place::Temp(_) => self.stored_temps.first_missing(place, range.clone()),
            Place::Arena => self.stored.first_missing(place, range.clone()),
            Place::Constants
            | Place::Weights(_)
            | Place::Buffer(_)
            | Place::StepTokens
            | Place::Slot(_)
            | Place::Logits => None,
        };
        if let Some(byte) = stored {
            panic!("{name} reads {space:?} byte {byte}, which nothing has written");
        }
        if let (Some(c), false) = (&mut self.current, matches!(place, Place::Temp(_))) {
            assert!(covers(&c.reads, &access), "{name} reads {bytes} undeclared bytes: {space:?} from {offset}");
            c.read.insert(place, range.clone());
        }
        let from = self.bytes(place);
        assert!(range.end <= from.len(), "{name} reads past the end of {space:?}: {bytes} bytes from {offset}");
        &from[range]
    }

    /// A checked and counted write.
    pub(super) fn store(&mut self, space: Space, offset: usize, at: At<'_>, dtype: DType, bytes: &[u8]) {
        let (place, start) = self.resolve(space, offset, at);
        let range = start..start + bytes.len();
        let name = self.current.as_ref().map_or("test", |c| c.name);
        match place {
            Place::Temp(id) => {
                let temp = self.temps.entry(id).or_default();
                temp.resize(temp.len().max(range.end), POISON);
                self.stored_temps.insert(place, range.clone());
            }
            Place::Arena => self.stored.insert(place, range.clone()),
            Place::Buffer(_) | Place::Slot(_) | Place::Logits => (),
            Place::Constants | Place::Weights(_) | Place::StepTokens => panic!("{name} writes to {space:?}"),
        }
        if let (Some(c), false) = (&mut self.current, matches!(place, Place::Temp(_))) {
            let access = Access { space, offset, bytes: bytes.len() };
            assert!(
                covers(&c.writes, &access),
                "{name} writes {} undeclared bytes: {space:?} from {offset}",
                bytes.len()
            );
            c.written.insert(place, range.clone());
            self.stores.push(Store { declared: access, place, start, dtype });
        }
        let to = self.bytes_mut(place);
        assert!(range.end <= to.len(), "{name} writes past the end of {space:?}: {} bytes from {offset}", bytes.len());
        to[range].copy_from_slice(bytes);
    }

    /// Where a virtual address really is.
    fn resolve(&self, space: Space, offset: usize, at: At<'_>) -> (Place, usize) {
        let half = |sequence: &SequenceInputs, half: usize| {
            let bytes = self.buffer(sequence.state).len() / 2;
            assert!(offset < bytes, "{space:?} has {bytes} bytes, not {offset}");
            (Place::Buffer(sequence.state), half * bytes + offset)
        };
        match (space, at) {
            (Space::Temp(id), At::Step) => (Place::Temp(id), offset),
            (Space::Arena, At::Step) => (Place::Arena, offset),
            (Space::Constants, At::Step) => (Place::Constants, offset),
            (Space::Weights(file), At::Step) => (Place::Weights(file), offset),
            (Space::StateIn, At::State(s)) => half(s, s.state_half),
            (Space::StateOut, At::State(s)) => half(s, 1 - s.state_half),
            (Space::Kv, At::Block(block)) => {
                let (pool, block_bytes) = self.kv.expect("a plan with attention runs after bind_kv");
                assert!(offset < block_bytes, "a KV block has {block_bytes} bytes, not {offset}");
                (Place::Buffer(pool), block as usize * block_bytes + offset)
            }
            (Space::Tokens, At::Step) if self.step_tokens.is_some() => (Place::StepTokens, offset),
            (Space::Tokens, At::Step) => (Place::Slot(self.token_slot), offset),
            (Space::NextTokens, At::Step) => (Place::Slot(1 - self.token_slot), offset),
            (Space::Logits, At::Step) => (Place::Logits, offset),
            (_, At::Step | At::State(_) | At::Block(_)) => panic!("{space:?} is addressed by the wrong kind of input"),
        }
    }

    fn bytes(&self, place: Place) -> &[u8] {
        match place {
            Place::Temp(id) => self.temps.get(&id).map_or(&[], Vec::as_slice),
            Place::Arena => &self.arena,
            Place::Constants => &self.constants,
            Place::Weights(file) => self.weights[file as usize].bytes(),
            Place::Buffer(id) => self.buffers.get(&id).expect("a buffer in use was allocated and not freed"),
            Place::StepTokens => self.step_tokens.as_deref().unwrap_or(&[]),
            Place::Slot(slot) => &self.slots[slot],
            Place::Logits => &self.logits,
        }
    }

    fn bytes_mut(&mut self, place: Place) -> &mut [u8] {
        match place {
            Place::Temp(id) => self.temps.entry(id).or_default(),
            Place::Arena => &mut self.arena,
            Place::Buffer(id) => self.buffer_mut(id),
            Place::Slot(slot) => &mut self.slots[slot],
            Place::Logits => &mut self.logits,
            Place::Constants | Place::Weights(_) | Place::StepTokens => panic!("{place:?} is read-only"),
        }
    }
}

/// What the harness means by a space, which it names outside a step.
fn poked(space: Space) -> Place {
    match space {
        Space::Arena => Place::Arena,
        Space::Tokens => Place::Slot(0),
        Space::NextTokens => Place::Slot(1),
        Space::Logits => Place::Logits,
        Space::Temp(_) | Space::Constants | Space::Weights(_) | Space::StateIn | Space::StateOut | Space::Kv => {
            panic!("{space:?} is not set by poke")
        }
    }
}

/// Whether declared ranges together contain a range.
fn covers(declared: &[Access], access: &Access) -> bool {
    let mut covered = access.offset..access.offset + access.bytes;
    while !covered.is_empty() {
        let holds = |d: &&Access| d.space == access.space && (d.offset..d.offset + d.bytes).contains(&covered.start);
        match declared.iter().find(holds) {
            Some(d) => covered.start = d.offset + d.bytes,
            None => return false,
        }
    }
    true
}
