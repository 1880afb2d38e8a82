//! A stack of quantized matrices as bf16 in scratch memory: what matmuls read where `fused-dequant` is off.

use crate::op::{Access, Contract, Cost, Counts, matrix_reads};
use crate::tensor::{DType, Format, Matrix, Tensor};

pub(crate) mod cases;
pub(crate) mod reference;

/// Operands.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpandWeights {
    /// `[E, N, K]`, codes.
    pub weight: Matrix,
    /// `[E·N, K]` bf16.
    pub out: Tensor,
}

impl Contract for ExpandWeights {
    fn reads(&self) -> Vec<Access> {
        matrix_reads(&self.weight)
    }
    fn writes(&self) -> Vec<Access> {
        vec![Access::from(&self.out)]
    }
    fn cost(&self, _: &Counts) -> Cost {
        Cost {
            read: self.weight.experts() * self.weight.expert_bytes(),
            written: self.out.bytes(),
            flops: 2 * self.out.rows * self.out.cols,
        }
    }
    fn tensors(&mut self) -> Vec<&mut Tensor> {
        vec![&mut self.out]
    }
    fn check(&self) {
        assert!(matches!(self.weight.format, Format::Affine { .. }) && self.weight.expanded.is_none());
        assert_eq!((self.out.rows, self.out.cols), (self.weight.experts() * self.weight.rows, self.weight.cols));
        assert_eq!(self.out.dtype, DType::Bf16);
    }
}
