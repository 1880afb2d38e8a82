//! Weighted sum of a token's K expert outputs, in rank order: `out[t] = Σ_r weights[t, r] · x[t·K + r]`.

use crate::op::{Access, Contract, Cost, Counts};
use crate::tensor::{DType, Tensor};

pub(crate) mod cases;
pub(crate) mod reference;
pub(crate) mod simd;

/// Operands; all f32.
#[derive(Debug, Clone, PartialEq)]
pub struct CombineExperts {
    /// `[T·K, D]`, in pair order.
    pub x: Tensor,
    /// `[T, K]`.
    pub weights: Tensor,
    /// `[T, D]`.
    pub out: Tensor,
}

impl Contract for CombineExperts {
    fn reads(&self) -> Vec<Access> {
        vec![Access::from(&self.x), Access::from(&self.weights)]
    }
    fn writes(&self) -> Vec<Access> {
        vec![Access::from(&self.out)]
    }
    fn cost(&self, c: &Counts) -> Cost {
        let k = self.weights.cols;
        Cost {
            read: c.tokens * (k * self.x.row_bytes() + self.weights.row_bytes()),
            written: c.tokens * self.out.row_bytes(),
            flops: 2 * c.tokens * k * self.out.cols,
        }
    }
    fn tensors(&mut self) -> Vec<&mut Tensor> {
        vec![&mut self.x, &mut self.weights, &mut self.out]
    }
    fn check(&self) {
        assert_eq!([self.x.dtype, self.weights.dtype, self.out.dtype], [DType::F32; 3]);
        assert_eq!((self.x.rows, self.x.cols), (self.out.rows * self.weights.cols, self.out.cols));
    }
}
