//! One step's view of device memory: turns operands of a dispatch into slices. The one place where the CPU device
//! relies on the plan: an op's reads and writes are disjoint (asserted when a plan is compiled), dispatches run one
//! after the other, and no two sequences share what they write (asserted when a step is submitted).

use bytemuck::Pod;

use super::Memory;
use super::pool::Parts;
use crate::inputs::{KV_BLOCK, SequenceInputs, StepInputs};
use crate::ops::kv_write::KvLayer;
use crate::ops::linear::Activations;
use crate::ops::linear::simd::{MatrixBytes, RowsIn};
use crate::tensor::{DType, FileSlice, Matrix, Space, Tensor};

/// Operands of the dispatches of one step.
pub struct Step<'a> {
    memory: &'a Memory,
    /// The step's inputs.
    pub inputs: &'a StepInputs,
}

impl<'a> Step<'a> {
    /// Exclusive use of the memory for one step.
    pub fn new(memory: &'a mut Memory, inputs: &'a StepInputs) -> Self {
        Self { memory, inputs }
    }

    /// Base address and size of a space that is not per sequence.
    fn base(&self, space: Space) -> (*mut u8, usize) {
        let m = self.memory;
        let buffer = match space {
            Space::Arena => &m.arena,
            Space::Constants => &m.constants,
            Space::Tokens => &m.token_slots[self.inputs.token_slot],
            Space::NextTokens => &m.token_slots[1 - self.inputs.token_slot],
            Space::Logits => &m.logits,
            Space::Temp(_) | Space::Weights(_) | Space::StateIn | Space::StateOut | Space::Kv => {
                unreachable!("{space:?} is not one flat buffer of a finished plan")
            }
        };
        (buffer.address(), buffer.len())
    }

    fn checked<T: Pod>(&self, t: &Tensor, rows: usize) -> (*mut T, usize) {
        let (base, len) = self.base(t.space);
        let bytes = rows * t.row_bytes();
        assert!(rows <= t.rows && size_of::<T>() == t.dtype.bytes() && t.offset + bytes <= len);
        // Buffers are page-aligned and the arena places tensors on cache lines.
        assert!(t.offset.is_multiple_of(align_of::<T>()), "operand off its alignment");
        (base.wrapping_add(t.offset).cast(), rows * t.cols)
    }

    /// The first `rows` rows of an operand that the running op reads.
    pub fn read<T: Pod>(&self, t: &Tensor, rows: usize) -> &'a [T] {
        let (first, len) = self.checked::<T>(t, rows);
        // SAFETY: in bounds and aligned (checked); nothing writes these bytes while the op that declared the read
        // runs, by the plan's contract; any bit pattern is a `Pod`.
        unsafe { std::slice::from_raw_parts(first, len) }
    }

    /// The first `rows` rows of an operand that the running op writes.
    ///
    /// # Safety
    /// At most once per operand and dispatch, for an operand that the op declares in `writes()`.
    pub unsafe fn write<T: Pod>(&self, t: &Tensor, rows: usize) -> &'a mut [T] {
        let (first, len) = self.checked::<T>(t, rows);
        // SAFETY: in bounds and aligned (checked); the caller takes each written operand once, and declared writes
        // are disjoint from reads and from each other.
        unsafe { std::slice::from_raw_parts_mut(first, len) }
    }

    /// A sequence's part of a state operand that the op reads.
    pub fn state_in(&self, sequence: &SequenceInputs, t: &Tensor) -> &'a [f32] {
        let (first, len) = self.state(sequence, t, sequence.state_half);
        // SAFETY: as `read`; steps write the other half.
        unsafe { std::slice::from_raw_parts(first, len) }
    }

    /// A sequence's part of a state operand that the op writes.
    ///
    /// # Safety
    /// As `write`, per sequence.
    pub unsafe fn state_out(&self, sequence: &SequenceInputs, t: &Tensor) -> &'a mut [f32] {
        let (first, len) = self.state(sequence, t, 1 ^ sequence.state_half);
        // SAFETY: as `write`; the half that is written is not read in this step, nor is it another sequence's.
        unsafe { std::slice::from_raw_parts_mut(first, len) }
    }

    fn state(&self, sequence: &SequenceInputs, t: &Tensor, half: usize) -> (*mut f32, usize) {
        let buffer = self.memory.buffer(sequence.state);
        let half_bytes = buffer.len() / 2;
        assert!(half < 2 && t.offset + t.bytes() <= half_bytes, "state operand outside its half");
        let offset = half * half_bytes + t.offset;
        assert!(t.dtype == DType::F32 && offset.is_multiple_of(align_of::<f32>()), "states are aligned f32");
        (buffer.address().wrapping_add(offset).cast(), t.rows * t.cols)
    }

    fn kv_block(&self, sequence: &SequenceInputs, block: usize) -> (*mut u8, usize) {
        let (pool, block_bytes) = self.memory.kv.expect("an engine binds its KV pool before the first step");
        let pool = self.memory.buffer(pool);
        let at = sequence.block_table[block] as usize * block_bytes;
        assert!(at + block_bytes <= pool.len(), "block table entry outside the pool");
        (pool.address().wrapping_add(at), block_bytes)
    }

    /// Bytes of a sequence's n-th KV block.
    pub fn kv(&self, sequence: &SequenceInputs, block: usize) -> &'a [u8] {
        let (first, len) = self.kv_block(sequence, block);
        // SAFETY: in bounds; ops that read the cache do not write it.
        unsafe { std::slice::from_raw_parts(first, len) }
    }

    /// Bytes of one head's row (`which`: 0 = K, 1 = V) at a position.
    ///
    /// # Safety
    /// Each row once per dispatch, by an op that declares the layer in `writes()`.
    pub unsafe fn kv_row(
        &self,
        sequence: &SequenceInputs,
        layer: &KvLayer,
        place: (usize, usize, usize),
    ) -> &'a mut [u8] {
        let (which, head, position) = place;
        let (first, len) = self.kv_block(sequence, position / KV_BLOCK);
        let offset = layer.row_offset(which, head, position % KV_BLOCK);
        let bytes = layer.head_dim * layer.dtype.bytes();
        assert!(offset + bytes <= len);
        // SAFETY: in bounds; rows of different heads and positions are disjoint, and each is taken once.
        unsafe { std::slice::from_raw_parts_mut(first.wrapping_add(offset), bytes) }
    }

    fn file(&self, slice: &FileSlice) -> &'a [u8] {
        &self.memory.files[slice.file as usize].bytes()[slice.offset as usize..][..slice.bytes as usize]
    }

    /// One expert's matrix (0 for an ordinary one).
    pub fn matrix(&self, m: &Matrix, expert: usize) -> MatrixBytes<'a> {
        let stored = &m.stack[expert];
        MatrixBytes {
            rows: m.rows,
            cols: m.cols,
            format: m.format,
            weight: self.file(&stored.weight),
            scales: stored.affine.as_ref().map_or(&[], |(scales, _)| self.file(scales)),
            biases: stored.affine.as_ref().map_or(&[], |(_, biases)| self.file(biases)),
        }
    }

    /// Activation rows of a matmul.
    pub fn rows_in(&self, x: &Activations, rows: usize) -> RowsIn<'a> {
        match x {
            Activations::Full(t) => RowsIn::Full { x: self.read(t, rows), cols: t.cols },
            Activations::Quantized(q) => RowsIn::Quantized {
                codes: self.read(&q.codes, rows),
                scales: self.read(&q.scales, rows),
                sums: self.read(&q.sums, rows),
                cols: q.codes.cols,
            },
        }
    }

    /// Per-thread scratch of the device.
    pub fn scratch(&self) -> Parts<'a, super::Scratch> {
        self.memory.scratch_parts()
    }
}
