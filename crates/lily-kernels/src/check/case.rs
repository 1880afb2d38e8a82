//! One op on one input: a plan of one dispatch, the step's inputs, and all memory before the step.

use std::sync::Arc;

use crate::backend::BufferId;
use crate::inputs::StepInputs;
use crate::mapped::MappedFile;
use crate::plan::Plan;
use crate::reference::{DispatchTouch, Memory, Store, run_observed};
use crate::tensor::Space;

/// All memory that a step could change. Whatever no operand fills is poison.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Image {
    /// Scratch memory.
    pub arena: Vec<u8>,
    /// Both token slots.
    pub slots: [Vec<u8>; 2],
    /// Logits.
    pub logits: Vec<u8>,
    /// Recurrent state of each sequence, both halves.
    pub states: Vec<Vec<u8>>,
    /// The pool of KV blocks.
    pub kv: Vec<u8>,
}

/// A case. The state of sequence i is named `BufferId(i)`, whatever a device calls it.
#[derive(Debug, Clone)]
pub struct Case {
    /// What is special about it.
    pub name: String,
    /// One dispatch.
    pub plan: Plan,
    /// True counts, positions, blocks.
    pub inputs: StepInputs,
    /// `Space::Weights(0)`.
    pub weights: Arc<MappedFile>,
    /// `Space::Constants`.
    pub constants: Vec<f32>,
    /// Memory before the step.
    pub before: Image,
    /// Bytes of one KV block; 0 if the op has no cache.
    pub block_bytes: usize,
    /// Largest error of a float, relative to it or to the RMS of the output, whichever is larger; 0 asks for equal bytes.
    /// Integers are always equal.
    pub tolerance: f64,
}

/// What the reference made of a case.
pub(super) struct Expected {
    pub after: Image,
    pub stores: Vec<Store>,
    pub touch: DispatchTouch,
}

impl Case {
    /// Bytes of all that it sets: of an op's cases, the largest says most about its speed.
    pub fn size(&self) -> usize {
        let before = &self.before;
        let states: usize = before.states.iter().map(Vec::len).sum();
        self.weights.bytes().len() + before.arena.len() + before.logits.len() + before.kv.len() + states
    }

    /// The weights as a file.
    pub fn weight_file(&self) -> Arc<MappedFile> {
        Arc::clone(&self.weights)
    }

    /// Name of the KV pool; it comes after the states.
    pub(super) fn kv_buffer(&self) -> BufferId {
        BufferId(self.before.states.len() as u32)
    }

    /// Runs the reference.
    pub(super) fn expected(&self) -> Expected {
        let mut mem = Memory::new();
        mem.add_weights(self.weight_file());
        mem.set_constants(&self.constants);
        mem.prepare(&self.plan);
        for state in &self.before.states {
            let id = mem.allocate(state.len());
            mem.buffer_mut(id).copy_from_slice(state);
        }
        if self.block_bytes > 0 {
            let id = mem.allocate(self.before.kv.len());
            mem.buffer_mut(id).copy_from_slice(&self.before.kv);
            mem.bind_kv(id, self.block_bytes);
        }
        for (space, bytes) in self.before.poked() {
            mem.poke(space, 0, bytes);
        }
        let mut stores = Vec::new();
        let mut after = |_: usize, _: &_, mem: &Memory| stores = mem.stores().to_vec();
        let mut touches = run_observed(&self.plan, &mut mem, &self.inputs, &mut after);
        let touch = touches.remove(0);
        Expected { after: self.read_back(&mem), stores, touch }
    }

    fn read_back(&self, mem: &Memory) -> Image {
        let mut image = self.before.clone();
        for (space, bytes) in image.poked_mut() {
            mem.peek(space, 0, bytes);
        }
        for (i, state) in image.states.iter_mut().enumerate() {
            state.copy_from_slice(mem.buffer(BufferId(i as u32)));
        }
        if self.block_bytes > 0 {
            image.kv.copy_from_slice(mem.buffer(self.kv_buffer()));
        }
        image
    }
}

impl Image {
    /// The parts that a harness sets with `poke`.
    pub fn poked(&self) -> [(Space, &[u8]); 4] {
        [
            (Space::Arena, &self.arena),
            (Space::Tokens, &self.slots[0]),
            (Space::NextTokens, &self.slots[1]),
            (Space::Logits, &self.logits),
        ]
    }

    /// As `poked`, mutable.
    pub fn poked_mut(&mut self) -> [(Space, &mut [u8]); 4] {
        let [tokens, next_tokens] = &mut self.slots;
        [
            (Space::Arena, &mut self.arena),
            (Space::Tokens, tokens),
            (Space::NextTokens, next_tokens),
            (Space::Logits, &mut self.logits),
        ]
    }
}
