//! Elements and rows of operands, as f64 or integers: what the references are written in.

use std::ops::Range;

use super::math::{decode, encode};
use super::memory::{At, Memory, POISON};
use crate::inputs::{KV_BLOCK, SequenceInputs};
use crate::op::Access;
use crate::ops::kv_write::KvLayer;
use crate::tensor::{DType, FileSlice, Space, Tensor};

/// One head's key or value in the cache.
#[derive(Debug, Clone, Copy)]
pub struct KvRow {
    /// 0 = key, 1 = value.
    pub which: usize,
    /// Key/value head.
    pub head: usize,
    /// Position in the sequence.
    pub position: usize,
}

impl KvRow {
    /// Block, and first byte in it.
    fn place(self, sequence: &SequenceInputs, layer: &KvLayer) -> (u32, usize) {
        let block = sequence.block_table[self.position / KV_BLOCK];
        (block, layer.row_offset(self.which, self.head, self.position % KV_BLOCK))
    }
}

impl Memory {
    /// A row of floats.
    pub fn row(&mut self, t: &Tensor, row: usize) -> Vec<f64> {
        self.floats(t, row, 0..t.cols)
    }

    /// Some elements of a row of floats.
    pub fn floats(&mut self, t: &Tensor, row: usize, cols: Range<usize>) -> Vec<f64> {
        let bytes = self.load(elements(t, row, cols), At::Step);
        // A poke counts as a write, so poison that a harness poked has to be told by its looks.
        let poisoned = t.dtype == DType::F32 && bytes.as_chunks::<4>().0.contains(&[POISON; 4]);
        assert!(
            !poisoned || t.space == Space::Logits,
            "poison read from row {row} of {t:?}, which nothing has written"
        );
        decode(t.dtype, bytes)
    }

    /// A row of u32.
    pub fn ids(&mut self, t: &Tensor, row: usize) -> Vec<u32> {
        assert_eq!(t.dtype, DType::U32);
        let bytes = self.load(elements(t, row, 0..t.cols), At::Step);
        bytes.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect()
    }

    /// A row of i8.
    pub fn codes(&mut self, t: &Tensor, row: usize) -> Vec<i8> {
        assert_eq!(t.dtype, DType::I8);
        self.load(elements(t, row, 0..t.cols), At::Step).iter().map(|b| i8::from_le_bytes([*b])).collect()
    }

    /// A row of a sequence's recurrent state.
    pub fn state_row(&mut self, sequence: &SequenceInputs, t: &Tensor, row: usize) -> Vec<f64> {
        decode(t.dtype, self.load(elements(t, row, 0..t.cols), At::State(sequence)))
    }

    /// A head's cached key or value at a position.
    pub fn kv_row(&mut self, sequence: &SequenceInputs, layer: &KvLayer, at: KvRow) -> Vec<f64> {
        let (block, offset) = at.place(sequence, layer);
        let bytes = layer.head_dim * layer.dtype.bytes();
        decode(layer.dtype, self.load(Access { space: Space::Kv, offset, bytes }, At::Block(block)))
    }

    /// Some bytes of a slice of a weight file.
    pub fn file(&mut self, slice: &FileSlice, range: Range<usize>) -> &[u8] {
        assert!(range.end as u64 <= slice.bytes, "{range:?} of {slice:?}");
        let offset = slice.offset as usize + range.start;
        self.load(Access { space: Space::Weights(slice.file), offset, bytes: range.len() }, At::Step)
    }

    /// A tensor of the same shape in memory of the running op's own.
    pub fn private(&self, t: &Tensor) -> Tensor {
        // Temporaries are numbered from 0.
        Tensor { space: Space::Temp(u32::MAX), offset: 0, ..*t }
    }

    /// Writes a row of floats.
    pub fn set_row(&mut self, t: &Tensor, row: usize, values: &[f64]) {
        assert_eq!(values.len(), t.cols);
        self.set_floats(t, row, 0, values);
    }

    /// Writes some elements of a row of floats.
    pub fn set_floats(&mut self, t: &Tensor, row: usize, first: usize, values: &[f64]) {
        let to = elements(t, row, first..first + values.len());
        self.store(to.space, to.offset, At::Step, t.dtype, &encode(t.dtype, values));
    }

    /// Writes a row of u32.
    pub fn set_ids(&mut self, t: &Tensor, row: usize, ids: &[u32]) {
        assert_eq!((t.dtype, ids.len()), (DType::U32, t.cols));
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        self.store(t.space, t.offset + row * t.row_bytes(), At::Step, t.dtype, &bytes);
    }

    /// Writes a row of i8.
    pub fn set_codes(&mut self, t: &Tensor, row: usize, codes: &[i8]) {
        assert_eq!((t.dtype, codes.len()), (DType::I8, t.cols));
        let bytes: Vec<u8> = codes.iter().flat_map(|code| code.to_le_bytes()).collect();
        self.store(t.space, t.offset + row * t.row_bytes(), At::Step, t.dtype, &bytes);
    }

    /// Writes a row of a sequence's recurrent state.
    pub fn set_state_row(&mut self, sequence: &SequenceInputs, t: &Tensor, row: usize, values: &[f64]) {
        let to = elements(t, row, 0..t.cols);
        self.store(to.space, to.offset, At::State(sequence), t.dtype, &encode(t.dtype, values));
    }

    /// Writes a head's key or value at a position.
    pub fn set_kv_row(&mut self, sequence: &SequenceInputs, layer: &KvLayer, at: KvRow, values: &[f64]) {
        let (block, offset) = at.place(sequence, layer);
        self.store(Space::Kv, offset, At::Block(block), layer.dtype, &encode(layer.dtype, values));
    }

    /// The first rows of a float tensor as f32, from outside a step: unchecked and uncounted.
    pub fn look_rows(&self, t: &Tensor, rows: usize) -> Vec<f32> {
        let bytes = self.look(Access { space: t.space, offset: t.offset, bytes: rows * t.row_bytes() });
        decode(t.dtype, bytes).into_iter().map(|v| v as f32).collect()
    }

    /// The first rows of a u32 tensor, from outside a step: unchecked and uncounted.
    pub fn look_ids(&self, t: &Tensor, rows: usize) -> Vec<u32> {
        let bytes = self.look(Access { space: t.space, offset: t.offset, bytes: rows * t.row_bytes() });
        bytes.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect()
    }
}

/// Some elements of a row.
fn elements(t: &Tensor, row: usize, cols: Range<usize>) -> Access {
    assert!(row < t.rows && cols.end <= t.cols, "row {row}, elements {cols:?} of {t:?}");
    let offset = t.offset + row * t.row_bytes() + cols.start * t.dtype.bytes();
    Access { space: t.space, offset, bytes: cols.len() * t.dtype.bytes() }
}
