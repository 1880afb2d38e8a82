//! One step's view of device memory: where each operand lies.

use super::Memory;
use super::device::Place;
use crate::inputs::StepInputs;
use crate::tensor::{FileSlice, Space, Tensor};

/// Operands of the dispatches of one step.
#[derive(Clone, Copy)]
pub struct Step<'a> {
    memory: &'a Memory,
    /// The step's inputs.
    pub inputs: &'a StepInputs,
}

/// Metal binds buffers at multiples of 4; 16 lets a kernel load vectors where the weights allow it.
const ALIGN: usize = 16;

impl<'a> Step<'a> {
    /// A view of a step.
    pub const fn new(memory: &'a Memory, inputs: &'a StepInputs) -> Self {
        Self { memory, inputs }
    }

    /// Where an operand begins.
    pub fn at(&self, t: &Tensor) -> Place<'a> {
        let m = self.memory;
        let buffer = match t.space {
            Space::Arena => &m.arena,
            Space::Constants => &m.constants,
            Space::Tokens => &m.token_slots[self.inputs.token_slot],
            Space::NextTokens => &m.token_slots[1 - self.inputs.token_slot],
            Space::Logits => &m.logits,
            Space::Temp(_) | Space::Weights(_) | Space::StateIn | Space::StateOut | Space::Kv => {
                unreachable!("{:?} is not one flat buffer of a finished plan", t.space)
            }
        };
        let buffer = buffer.as_ref().expect("a plan was compiled before a step runs");
        assert!(t.offset + t.bytes() <= buffer.len(), "operand outside of {:?}", t.space);
        Place { buffer, offset: t.offset }
    }

    /// A place before a range of a weight file, and how many bytes before.
    pub fn file(&self, slice: &FileSlice) -> (Place<'a>, u32) {
        let offset = slice.offset as usize;
        let shift = offset % ALIGN;
        (Place { buffer: &self.memory.files[slice.file as usize], offset: offset - shift }, shift as u32)
    }
}
