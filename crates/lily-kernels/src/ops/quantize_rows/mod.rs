//! Activations to int8, symmetric, per group of 64: `scale = max|x| / 127`, `code = round(x / scale)` (ties to
//! even; clamped to ±127, which only a subnormal scale needs; 0 where the scale is 0), `sum = scale · Σ code`. A group
//! with a NaN or an infinity has scale and sum NaN and codes 0, so that what reads it is no number either. Each
//! operation in f32, rounded once: a division, not a product with a reciprocal, so that every device gives the same
//! codes. Within a group the codes of even inputs come first, then those of odd ones: a byte of 4-bit weights holds one
//! of each, so the weights meet them without being put in order. One quantization serves every matmul that reads the same
//! activations.

use crate::op::{Access, Contract, Cost, Counts};
use crate::tensor::{DType, Tensor};

pub(crate) mod cases;
pub(crate) mod reference;
pub(crate) mod simd;

/// Activations that share a scale; equals the weights' group, so that a group's product is exact in int32.
pub const GROUP: usize = 64;

/// Where the code of a group's input `i` stands.
pub const fn place(i: usize) -> usize {
    i / 2 + i % 2 * (GROUP / 2)
}

/// A quantized activation matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Quantized {
    /// `[R, K]` i8, each group in the order of `place`.
    pub codes: Tensor,
    /// `[R, K / 64]` f32.
    pub scales: Tensor,
    /// `[R, K / 64]` f32: scale · Σ code, which multiplies the weights' biases.
    pub sums: Tensor,
}

impl Quantized {
    /// Ranges of all three.
    pub fn accesses(&self) -> [Access; 3] {
        [Access::from(&self.codes), Access::from(&self.scales), Access::from(&self.sums)]
    }

    /// Bytes of one row of all three.
    pub const fn row_bytes(&self) -> usize {
        self.codes.row_bytes() + self.scales.row_bytes() + self.sums.row_bytes()
    }

    /// The tensors, mutable.
    pub fn tensors(&mut self) -> [&mut Tensor; 3] {
        [&mut self.codes, &mut self.scales, &mut self.sums]
    }
}

/// Operands. Rows are `per_token` × the step's rows.
#[derive(Debug, Clone, PartialEq)]
pub struct QuantizeRows {
    /// Which rows.
    pub rows: crate::op::Rows,
    /// Rows per counted row: 1, or top-k for expert activations.
    pub per_row: usize,
    /// `[R, K]` f32.
    pub x: Tensor,
    /// Result.
    pub out: Quantized,
}

impl Contract for QuantizeRows {
    fn reads(&self) -> Vec<Access> {
        vec![Access::from(&self.x)]
    }
    fn writes(&self) -> Vec<Access> {
        self.out.accesses().to_vec()
    }
    fn cost(&self, c: &Counts) -> Cost {
        let rows = c.rows(self.rows) * self.per_row;
        Cost { read: rows * self.x.row_bytes(), written: rows * self.out.row_bytes(), flops: 4 * rows * self.x.cols }
    }
    fn tensors(&mut self) -> Vec<&mut Tensor> {
        let mut all = vec![&mut self.x];
        all.extend(self.out.tensors());
        all
    }
    fn check(&self) {
        let Quantized { codes, scales, sums } = &self.out;
        assert_eq!(
            [self.x.dtype, codes.dtype, scales.dtype, sums.dtype],
            [DType::F32, DType::I8, DType::F32, DType::F32]
        );
        assert_eq!(self.x.cols % GROUP, 0);
        assert_eq!((codes.rows, codes.cols), (self.x.rows, self.x.cols));
        assert_eq!([scales.cols, sums.cols], [self.x.cols / GROUP; 2]);
        assert_eq!([scales.rows, sums.rows], [self.x.rows; 2]);
    }
}
