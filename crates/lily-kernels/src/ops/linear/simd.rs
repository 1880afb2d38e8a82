//! Matmul of some rows with some columns of one weight matrix, on every instruction set. Weights are bytes at any
//! offset; nothing is cast. A result's bytes depend on its own row and column only.

use std::ops::Range;

use crate::cpu::columns::ColumnsMut;
use crate::cpu::isa::Isa;
use crate::cpu::lanes::Scratch;
use crate::tensor::{DType, Format};

mod decode; // a weight row to f32
mod full; // f32 activations
mod int8; // int8 activations
#[cfg(test)]
mod tests;

pub use decode::decode_row;

/// One weight matrix `[rows, cols]` (of a stack, one expert's).
#[derive(Debug, Clone, Copy)]
pub struct MatrixBytes<'a> {
    /// Outputs (N).
    pub rows: usize,
    /// Inputs (K).
    pub cols: usize,
    /// Storage.
    pub format: Format,
    /// Elements or packed codes.
    pub weight: &'a [u8],
    /// `[rows, cols / group]`; empty for dense formats.
    pub scales: &'a [u8],
    /// `[rows, cols / group]`; empty for dense formats.
    pub biases: &'a [u8],
}

/// Activations, all rows of the step.
#[derive(Debug, Clone, Copy)]
pub enum RowsIn<'a> {
    /// `[R, cols]` f32.
    Full {
        /// Elements.
        x: &'a [f32],
        /// K.
        cols: usize,
    },
    /// What `quantize_row` made of each row.
    Quantized {
        /// `[R, cols]`.
        codes: &'a [i8],
        /// `[R, cols / 64]`.
        scales: &'a [f32],
        /// `[R, cols / 64]`.
        sums: &'a [f32],
        /// K.
        cols: usize,
    },
}

/// Which row of the activations is read, and which row of the result written, for each row computed.
#[derive(Debug, Clone)]
pub enum RowMap<'a> {
    /// These rows; input and output agree.
    Rows(Range<usize>),
    /// These pairs of an expert: pair p reads row ⌊p / `pairs_per_row`⌋ and writes row p.
    Pairs {
        /// The pairs.
        order: &'a [u32],
        /// Pairs that share an input row: top-k, or 1.
        pairs_per_row: usize,
    },
    /// The same, written to rows 0, 1, …
    Gather {
        /// The pairs.
        order: &'a [u32],
        /// Pairs that share an input row.
        pairs_per_row: usize,
    },
}

impl RowMap<'_> {
    /// Rows computed.
    pub const fn len(&self) -> usize {
        match self {
            Self::Rows(rows) => rows.end - rows.start,
            Self::Pairs { order, .. } | Self::Gather { order, .. } => order.len(),
        }
    }

    /// Input row of the i-th computed row.
    #[inline(always)]
    fn input(&self, i: usize) -> usize {
        match self {
            Self::Rows(rows) => rows.start + i,
            Self::Pairs { order, pairs_per_row } | Self::Gather { order, pairs_per_row } => {
                order[i] as usize / pairs_per_row
            }
        }
    }

    /// Output row of the i-th computed row.
    #[inline(always)]
    fn output(&self, i: usize) -> usize {
        match self {
            Self::Rows(rows) => rows.start + i,
            Self::Pairs { order, .. } => order[i] as usize,
            Self::Gather { .. } => i,
        }
    }
}

impl MatrixBytes<'_> {
    /// Bytes of one row's elements or codes.
    const fn row_bytes(&self) -> usize {
        match self.format {
            Format::Dense(dtype) => self.cols * dtype.bytes(),
            Format::Affine { bits, .. } => (self.cols * bits as usize).div_ceil(8),
        }
    }

    /// Asserts that the bytes are those of the shape.
    fn check(&self) {
        assert_eq!(self.weight.len(), self.rows * self.row_bytes(), "bytes of the weight");
        let affine = match self.format {
            Format::Dense(_) => 0,
            Format::Affine { bits, group, scale } => {
                assert!((1..=8).contains(&bits) && self.cols.is_multiple_of(group as usize));
                self.rows * (self.cols / group as usize) * scale.bytes()
            }
        };
        assert_eq!([self.scales.len(), self.biases.len()], [affine; 2], "bytes of scales and biases");
    }
}

/// Bytes of `Scratch` that `matmul` needs for matrices of up to `cols` inputs.
pub const fn scratch_bytes(cols: usize) -> usize {
    let (full, int8) = (full::scratch_bytes(cols), int8::scratch_bytes(cols));
    if full > int8 { full } else { int8 }
}

/// `out[output(i), j] = x[input(i)] · w[columns.start + j]` for every row of `rows` and every j of `columns`; `out` is
/// `columns.len()` wide. The arithmetic is fixed by `ops::linear`.
pub fn matmul(
    isa: Isa,
    w: &MatrixBytes,
    x: &RowsIn,
    rows: &RowMap,
    columns: Range<usize>,
    scratch: &mut Scratch,
    out: &mut ColumnsMut,
) {
    w.check();
    assert!(columns.start <= columns.end && columns.end <= w.rows, "columns of the matrix");
    assert_eq!(out.width(), columns.len());
    let scratch = scratch.f32s();
    match *x {
        RowsIn::Full { x, cols } => {
            assert_eq!(cols, w.cols);
            full::matmul(isa, w, x, rows, columns, scratch, out);
        }
        RowsIn::Quantized { codes, scales, sums, cols } => {
            assert_eq!(cols, w.cols);
            assert!(w.format.takes_int8(cols), "int8 activations need weights in groups that fit theirs");
            let x = int8::Activations { codes, scales, sums };
            int8::matmul(isa, w, &x, rows, columns, scratch, out);
        }
    }
}

/// A float at element `i` of little-endian bytes.
#[inline(always)]
fn float_at(bytes: &[u8], dtype: DType, i: usize) -> f32 {
    let half = |i: usize| u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]);
    match dtype {
        DType::F32 => f32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]]),
        DType::Bf16 => f32::from_bits(u32::from(half(i)) << 16),
        DType::F16 => decode::f16_to_f32(half(i)),
        DType::U32 | DType::I32 | DType::I8 | DType::U8 => panic!("weights are not {dtype:?}"),
    }
}
