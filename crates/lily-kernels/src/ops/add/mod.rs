//! `out = a + b`, the residual connection.

use crate::op::{Access, Contract, Cost, Counts};
use crate::tensor::{DType, Tensor};

pub(crate) mod cases;
pub(crate) mod reference;
pub(crate) mod simd;

/// Operands; all `[T, D]` f32.
#[derive(Debug, Clone, PartialEq)]
pub struct Add {
    /// First term.
    pub a: Tensor,
    /// Second term.
    pub b: Tensor,
    /// Sum.
    pub out: Tensor,
}

impl Contract for Add {
    fn reads(&self) -> Vec<Access> {
        vec![Access::from(&self.a), Access::from(&self.b)]
    }
    fn writes(&self) -> Vec<Access> {
        vec![Access::from(&self.out)]
    }
    fn cost(&self, c: &Counts) -> Cost {
        Cost {
            read: 2 * c.tokens * self.a.row_bytes(),
            written: c.tokens * self.out.row_bytes(),
            flops: c.tokens * self.out.cols,
        }
    }
    fn tensors(&mut self) -> Vec<&mut Tensor> {
        vec![&mut self.a, &mut self.b, &mut self.out]
    }
    fn check(&self) {
        for t in [&self.a, &self.b, &self.out] {
            assert_eq!((t.dtype, t.rows, t.cols), (DType::F32, self.out.rows, self.out.cols));
        }
    }
}
