//! The K largest of each row's E router logits, largest first (ties to the lower expert), and their softmax over the
//! chosen: equal to the softmax over all E renormalised over the K. In f32, so that bf16 ties cannot change the
//! choice. NaN is the least likely, and a row that has one has NaN for all weights: a broken model names experts that
//! exist, and its answer is no number. SPEC §2.6.

use crate::op::{Access, Contract, Cost, Counts};
use crate::tensor::{DType, Tensor};

pub(crate) mod cases;
pub(crate) mod reference;
pub(crate) mod simd;

/// Operands.
#[derive(Debug, Clone, PartialEq)]
pub struct RouterTopK {
    /// `[T, E]` f32.
    pub logits: Tensor,
    /// `[T, K]` u32, by rank.
    pub experts: Tensor,
    /// `[T, K]` f32, by rank; a row sums to 1.
    pub weights: Tensor,
}

impl Contract for RouterTopK {
    fn reads(&self) -> Vec<Access> {
        vec![Access::from(&self.logits)]
    }
    fn writes(&self) -> Vec<Access> {
        vec![Access::from(&self.experts), Access::from(&self.weights)]
    }
    fn cost(&self, c: &Counts) -> Cost {
        Cost {
            read: c.tokens * self.logits.row_bytes(),
            written: c.tokens * (self.experts.row_bytes() + self.weights.row_bytes()),
            flops: c.tokens * (self.logits.cols + 4 * self.experts.cols),
        }
    }
    fn tensors(&mut self) -> Vec<&mut Tensor> {
        vec![&mut self.logits, &mut self.experts, &mut self.weights]
    }
    fn check(&self) {
        assert_eq!([self.logits.dtype, self.experts.dtype, self.weights.dtype], [DType::F32, DType::U32, DType::F32]);
        assert_eq!(self.experts.cols, self.weights.cols);
        assert!(self.experts.cols <= self.logits.cols);
    }
}
