//! Rows whose logits are wanted: `out[i] = x[outputs[i]]`.

use crate::op::{Access, Contract, Cost, Counts};
use crate::tensor::{DType, Tensor};

pub(crate) mod cases;
pub(crate) mod reference;
pub(crate) mod simd;

/// Operands.
#[derive(Debug, Clone, PartialEq)]
pub struct GatherRows {
    /// `[T, D]` f32.
    pub x: Tensor,
    /// `[R, D]` f32.
    pub out: Tensor,
}

impl Contract for GatherRows {
    fn reads(&self) -> Vec<Access> {
        vec![Access::from(&self.x)]
    }
    fn writes(&self) -> Vec<Access> {
        vec![Access::from(&self.out)]
    }
    fn cost(&self, c: &Counts) -> Cost {
        let bytes = c.outputs * self.out.row_bytes();
        Cost { read: bytes, written: bytes, flops: 0 }
    }
    fn tensors(&mut self) -> Vec<&mut Tensor> {
        vec![&mut self.x, &mut self.out]
    }
    fn check(&self) {
        assert_eq!([self.x.dtype, self.out.dtype], [DType::F32; 2]);
        assert_eq!(self.x.cols, self.out.cols);
    }
}
