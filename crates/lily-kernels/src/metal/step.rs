//! One step's view of device memory: where each operand lies, and the numbers of the step that kernels read.

use super::Memory;
use super::device::{Buffer, Place};
use super::weights::Stack;
use crate::inputs::{SequenceInputs, StepInputs};
use crate::op::Counts;
use crate::ops::sample::uniform;
use crate::policy::Abilities;
use crate::switches::Switches;
use crate::tensor::{Matrix, Space, Tensor};

/// Operands of the dispatches of one step.
#[derive(Clone, Copy)]
pub struct Step<'a> {
    memory: &'a Memory,
    numbers: &'a Buffer,
    /// The step's inputs.
    pub inputs: &'a StepInputs,
    /// Their sizes.
    pub counts: Counts,
    /// Those of the plan.
    pub switches: Switches,
    /// Those of the GPU.
    pub abilities: Abilities,
    /// Which of each op's legal grids runs: 0 is the policy's choice.
    pub variant: usize,
}

/// Where a table may be bound.
const ALIGN: usize = 16;

/// Where in the step buffer its tables begin.
struct Tables {
    block_tables: usize,
    outputs: usize,
    sampling: usize,
    edits: usize,
    masks: usize,
}

/// Bytes of a `SampleRow`.
const SAMPLE_ROW: usize = 36;
/// Bytes of a `SampleEdit`.
const SAMPLE_EDIT: usize = 16;
/// In place of the number of a mask, as in `sample.metal`.
const NO_MASK: u32 = u32::MAX;

impl Tables {
    fn of(inputs: &StepInputs) -> Self {
        let rows = inputs.num_tokens() * 8;
        let block_tables = rows.next_multiple_of(ALIGN).max(ALIGN);
        let entries: usize = inputs.sequences.iter().map(|s| s.block_table.len()).sum();
        let outputs = (block_tables + 4 * entries).next_multiple_of(ALIGN);
        let sampling = (outputs + 4 * inputs.outputs.len()).next_multiple_of(ALIGN);
        let edits = (sampling + SAMPLE_ROW * inputs.sampling.len()).next_multiple_of(ALIGN);
        Self { block_tables, outputs, sampling, edits, masks: edits + SAMPLE_EDIT * inputs.edits.len() }
    }
}

/// The numbers of a step as kernels read them: position and block table of each row (`StepRow`), the block tables, the
/// output rows, how their tokens are chosen (`SampleRow`, `SampleEdit`, masks).
pub fn numbers(inputs: &StepInputs) -> Vec<u8> {
    let tables = Tables::of(inputs);
    let mut bytes = Vec::new();
    let mut first_entry = 0;
    for s in &inputs.sequences {
        for row in 0..s.num_rows {
            bytes.extend(((s.start + row) as u32).to_le_bytes());
            bytes.extend((first_entry as u32).to_le_bytes());
        }
        first_entry += s.block_table.len();
    }
    bytes.resize(tables.block_tables, 0);
    bytes.extend(inputs.sequences.iter().flat_map(|s| &s.block_table).flat_map(|block| block.to_le_bytes()));
    bytes.resize(tables.outputs, 0);
    bytes.extend(inputs.outputs.iter().flat_map(|row| row.to_le_bytes()));
    bytes.resize(tables.sampling, 0);
    for (row, how) in inputs.sampling.iter().enumerate() {
        let edits = inputs.edits_range(row);
        // 24 bits, so that the host's number is the kernel's.
        let draw = uniform(how.seed, how.counter) * 2f32.powi(32);
        let [temperature, top_p, min_p] = [how.temperature, how.top_p, how.min_p].map(f32::to_bits);
        let words = [temperature, how.top_k, top_p, min_p, draw as u32, how.vocab_limit];
        let tables = [edits.start as u32, edits.len() as u32, how.mask.unwrap_or(NO_MASK)];
        bytes.extend(words.iter().chain(&tables).flat_map(|word| word.to_le_bytes()));
    }
    bytes.resize(tables.edits, 0);
    for edit in &inputs.edits {
        let words = [edit.id, edit.bias.to_bits(), edit.repetition.to_bits(), edit.penalty.to_bits()];
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    }
    bytes.extend(inputs.masks.iter().flat_map(|word| word.to_le_bytes()));
    // A buffer is bound where it has bytes.
    bytes.resize(bytes.len() + ALIGN, 0);
    bytes
}

impl<'a> Step<'a> {
    /// A view of a step whose `numbers` are on the device, as those of the step with this number.
    pub fn new(memory: &'a Memory, step: u64, inputs: &'a StepInputs, switches: Switches) -> Self {
        let numbers = present(memory.numbers_of(step));
        let (abilities, variant) = (memory.abilities, memory.variant);
        Self { memory, numbers, inputs, counts: inputs.counts(0), switches, abilities, variant }
    }

    /// Rows of the step.
    pub fn tokens(&self) -> usize {
        self.inputs.num_tokens()
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
        let buffer = present(buffer);
        assert!(t.offset + t.bytes() <= buffer.len(), "operand outside of {:?}", t.space);
        Place { buffer, offset: t.offset }
    }

    /// Where a matrix lies, or a stack of them.
    pub fn weights(&self, weight: &Matrix) -> Stack<'a> {
        let Some(expanded) = &weight.expanded else {
            return self.memory.weights.stack(weight);
        };
        Stack { places: [self.at(expanded); 3], at: [0; 3], steps: [weight.expert_bytes(); 3] }
    }

    /// A sequence's part of a state operand that is read.
    pub fn state_in(&self, sequence: &SequenceInputs, t: &Tensor) -> Place<'a> {
        self.state(sequence, t, sequence.state_half)
    }

    /// A sequence's part of a state operand that is written.
    pub fn state_out(&self, sequence: &SequenceInputs, t: &Tensor) -> Place<'a> {
        self.state(sequence, t, 1 ^ sequence.state_half)
    }

    fn state(&self, sequence: &SequenceInputs, t: &Tensor, half: usize) -> Place<'a> {
        let (buffer, bytes) = self.memory.buffer(sequence.state);
        assert!(t.offset + t.bytes() <= bytes / 2, "state operand outside its half");
        Place { buffer, offset: half * (bytes / 2) + t.offset }
    }

    /// The pool of KV blocks.
    pub fn kv(&self) -> Place<'a> {
        let (pool, _) = self.memory.kv.expect("an engine binds its KV pool before the first step");
        Place { buffer: self.memory.buffer(pool).0, offset: 0 }
    }

    /// Bytes of a KV block.
    pub fn kv_block_bytes(&self) -> usize {
        self.memory.kv.map_or(0, |(_, bytes)| bytes)
    }

    /// `StepRow` of each row.
    pub fn rows(&self) -> Place<'a> {
        Place { buffer: self.numbers, offset: 0 }
    }

    /// The block tables.
    pub fn tables(&self) -> Place<'a> {
        Place { buffer: self.numbers, offset: Tables::of(self.inputs).block_tables }
    }

    /// Rows whose logits are wanted.
    pub fn outputs(&self) -> Place<'a> {
        Place { buffer: self.numbers, offset: Tables::of(self.inputs).outputs }
    }

    /// `SampleRow` of each output row.
    pub fn sampling(&self) -> Place<'a> {
        Place { buffer: self.numbers, offset: Tables::of(self.inputs).sampling }
    }

    /// The edits of all rows.
    pub fn edits(&self) -> Place<'a> {
        Place { buffer: self.numbers, offset: Tables::of(self.inputs).edits }
    }

    /// The masks of all rows.
    pub fn masks(&self) -> Place<'a> {
        Place { buffer: self.numbers, offset: Tables::of(self.inputs).masks }
    }

    /// What sampling works in.
    pub fn scratch(&self, offset: usize) -> Place<'a> {
        Place { buffer: present(&self.memory.sampling), offset }
    }

    /// The chosen tokens once more, in memory that no later step reads: the host looks there while one runs.
    pub fn for_host(&self) -> Place<'a> {
        Place { buffer: present(&self.memory.for_host[1 - self.inputs.token_slot]), offset: 0 }
    }
}

fn present(buffer: &Option<Buffer>) -> &Buffer {
    buffer.as_ref().expect("a plan was compiled before a step runs")
}
