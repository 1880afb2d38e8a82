//! Causal softmax attention of each row over its sequence's KV cache, which already holds the row itself.
//! `[T, Hq·head_dim]` → the same; query head a reads KV head ⌊a·Hkv/Hq⌋; scale head_dim^−½.
//! Positions are taken in blocks of 256, each with its own maximum, and merged in ascending order, so that a row's
//! bytes depend on its own position only.

use crate::inputs::KV_BLOCK;
use crate::op::{Access, Contract, Cost, Counts};
use crate::ops::kv_write::KvLayer;
use crate::tensor::{DType, Tensor};

pub(crate) mod cases;
pub(crate) mod reference;
pub(crate) mod simd;

/// Operands.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    /// `[T, Hq·head_dim]` f32.
    pub q: Tensor,
    /// Keys and values.
    pub layer: KvLayer,
    /// `[T, Hq·head_dim]` f32.
    pub out: Tensor,
}

impl Attention {
    /// Query heads.
    pub const fn q_heads(&self) -> usize {
        self.q.cols / self.layer.head_dim
    }
}

impl Contract for Attention {
    fn reads(&self) -> Vec<Access> {
        vec![Access::from(&self.q), self.layer.access()]
    }
    fn writes(&self) -> Vec<Access> {
        vec![Access::from(&self.out)]
    }
    fn cost(&self, c: &Counts) -> Cost {
        Cost {
            read: c.tokens * self.q.row_bytes() + c.kv_positions * self.layer.position_bytes(),
            written: c.tokens * self.out.row_bytes(),
            flops: 4 * c.attended * self.q.cols,
        }
    }
    fn tensors(&mut self) -> Vec<&mut Tensor> {
        vec![&mut self.q, &mut self.out]
    }
    fn check(&self) {
        assert_eq!(self.q.cols % self.layer.head_dim, 0);
        assert_eq!(self.q_heads() % self.layer.heads, 0);
        assert_eq!((self.q.rows, self.q.cols), (self.out.rows, self.out.cols));
        assert_eq!([self.q.dtype, self.out.dtype], [DType::F32; 2]);
        const { assert!(KV_BLOCK.is_multiple_of(16)) };
    }
}
