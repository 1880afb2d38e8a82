//! Routing on the device: sorts the step's T·K (token, rank) pairs by expert, stably. Histogram, prefix sum, scatter.
//! Pair p = token·K + rank.

use crate::op::{Access, Contract, Cost, Counts};
use crate::tensor::{DType, Tensor};

pub(crate) mod cases;
pub(crate) mod reference;
pub(crate) mod simd;

/// Pairs sorted by expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Groups {
    /// `[1, E + 1]` u32: expert e has `order[offsets[e]..offsets[e + 1]]`.
    pub offsets: Tensor,
    /// `[T, K]` u32: pair numbers.
    pub order: Tensor,
}

impl Groups {
    /// Ranges.
    pub fn accesses(&self) -> [Access; 2] {
        [Access::from(&self.offsets), Access::from(&self.order)]
    }

    /// Experts in the layer.
    pub const fn experts(&self) -> usize {
        self.offsets.cols - 1
    }

    /// Experts per token.
    pub const fn top_k(&self) -> usize {
        self.order.cols
    }

    /// Bytes that a reader of a step of `tokens` tokens touches.
    pub const fn bytes(&self, tokens: usize) -> usize {
        self.offsets.bytes() + tokens * self.order.row_bytes()
    }
}

/// Operands.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupRows {
    /// `[T, K]` u32.
    pub experts: Tensor,
    /// Result.
    pub groups: Groups,
}

impl Contract for GroupRows {
    fn reads(&self) -> Vec<Access> {
        vec![Access::from(&self.experts)]
    }
    fn writes(&self) -> Vec<Access> {
        self.groups.accesses().to_vec()
    }
    fn cost(&self, c: &Counts) -> Cost {
        Cost { read: c.tokens * self.experts.row_bytes(), written: self.groups.bytes(c.tokens), flops: 0 }
    }
    fn tensors(&mut self) -> Vec<&mut Tensor> {
        vec![&mut self.experts, &mut self.groups.offsets, &mut self.groups.order]
    }
    fn check(&self) {
        assert_eq!([self.experts.dtype, self.groups.offsets.dtype, self.groups.order.dtype], [DType::U32; 3]);
        assert_eq!(self.experts.cols, self.groups.order.cols);
    }
}
