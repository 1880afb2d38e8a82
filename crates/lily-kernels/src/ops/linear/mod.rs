//! `out = x · Wᵀ`, `[R, K] × [N, K] → [R, N]`, f32 out. The arithmetic is fixed, so that GEMV, GEMM and every
//! instruction set give the same bytes:
//! - f32 activations: weights are decoded to f32 (`scale · code`, then `+ bias`); lane j of 16 sums the products of
//!   elements j, j+16, … in order, multiply and add apart; the lanes are added as a tree (8, 4, 2, 1).
//! - int8 activations: per 64 inputs, or per group where that is 32, the exact int32 dot product d; in order
//!   `acc += (scale · x_scale) · d; acc += bias · x_sum`, the product in brackets rounded, each sum a fused multiply-add.
//!   `x_sum` is that of `quantize_rows`; of half a group it is `x_scale · Σ code`.

use crate::op::{Access, Contract, Cost, Counts, Rows, matrix_reads};
use crate::ops::quantize_rows::Quantized;
use crate::tensor::{DType, Matrix, Tensor};

pub(crate) mod cases;
pub(crate) mod reference;
pub(crate) mod simd;

/// Activations of a matmul.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Activations {
    /// `[R, K]` f32.
    Full(Tensor),
    /// int8 with scales.
    Quantized(Quantized),
}

impl Activations {
    /// Ranges.
    pub fn accesses(&self) -> Vec<Access> {
        match self {
            Self::Full(t) => vec![Access::from(t)],
            Self::Quantized(q) => q.accesses().to_vec(),
        }
    }

    /// Bytes of one row.
    pub const fn row_bytes(&self) -> usize {
        match self {
            Self::Full(t) => t.row_bytes(),
            Self::Quantized(q) => q.row_bytes(),
        }
    }

    /// Rows (bucket) and inputs.
    pub const fn shape(&self) -> (usize, usize) {
        match self {
            Self::Full(t) => (t.rows, t.cols),
            Self::Quantized(q) => (q.codes.rows, q.codes.cols),
        }
    }

    /// The tensors, mutable.
    pub fn tensors(&mut self) -> Vec<&mut Tensor> {
        match self {
            Self::Full(t) => vec![t],
            Self::Quantized(q) => q.tensors().into(),
        }
    }

    /// Asserts that a matrix takes these activations.
    pub fn check(&self, weight: &Matrix) {
        assert_eq!(self.shape().1, weight.cols, "activations and weight disagree about the inputs");
        match (self, weight.format) {
            (Self::Full(t), _) => assert_eq!(t.dtype, DType::F32),
            (Self::Quantized(_), format) => {
                assert!(format.takes_int8(weight.cols), "{format:?} takes no int8 activations")
            }
        }
    }
}

/// Operands.
#[derive(Debug, Clone, PartialEq)]
pub struct Linear {
    /// Which rows.
    pub rows: Rows,
    /// `[R, K]`.
    pub x: Activations,
    /// `[N, K]`.
    pub weight: Matrix,
    /// `[R, N]` f32.
    pub out: Tensor,
    /// Whether a kernel may round both sides to bf16; the reference never does.
    pub may_round: bool,
}

impl Contract for Linear {
    fn reads(&self) -> Vec<Access> {
        let mut reads = matrix_reads(&self.weight);
        reads.extend(self.x.accesses());
        reads
    }
    fn writes(&self) -> Vec<Access> {
        vec![Access::from(&self.out)]
    }
    fn cost(&self, c: &Counts) -> Cost {
        let rows = c.rows(self.rows);
        Cost {
            read: self.weight.expert_bytes() + rows * self.x.row_bytes(),
            written: rows * self.out.row_bytes(),
            flops: 2 * rows * self.weight.rows * self.weight.cols,
        }
    }
    fn tensors(&mut self) -> Vec<&mut Tensor> {
        let mut all = self.x.tensors();
        all.extend(self.weight.expanded.as_mut());
        all.push(&mut self.out);
        all
    }
    fn check(&self) {
        self.x.check(&self.weight);
        assert_eq!(self.weight.experts(), 1);
        assert_eq!((self.out.rows, self.out.cols), (self.x.shape().0, self.weight.rows));
        assert_eq!(self.out.dtype, DType::F32);
    }
}
