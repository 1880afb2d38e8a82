//! Writes each row's key and value heads into the KV cache at the row's position.
//! A block holds, per layer, K then V, each `[Hkv, 256, head_dim]`.

use crate::inputs::KV_BLOCK;
use crate::op::{Access, Contract, Cost, Counts};
use crate::tensor::{DType, Space, Tensor};

pub(crate) mod cases;
pub(crate) mod reference;
pub(crate) mod simd;

/// One layer's part of a KV block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KvLayer {
    /// First byte within a block.
    pub offset: usize,
    /// Key/value heads.
    pub heads: usize,
    /// Elements of one head.
    pub head_dim: usize,
    /// f32 (exact) or bf16 (fast).
    pub dtype: DType,
}

impl KvLayer {
    /// Bytes of K (or of V) of one block.
    pub const fn half_bytes(&self) -> usize {
        self.heads * KV_BLOCK * self.head_dim * self.dtype.bytes()
    }

    /// Bytes of K and V of one block.
    pub const fn bytes(&self) -> usize {
        2 * self.half_bytes()
    }

    /// Bytes of one position's K and V, all heads.
    pub const fn position_bytes(&self) -> usize {
        2 * self.heads * self.head_dim * self.dtype.bytes()
    }

    /// First byte, within a block, of a head's row at a position (`which`: 0 = K, 1 = V).
    pub const fn row_offset(&self, which: usize, head: usize, position_in_block: usize) -> usize {
        let row = (head * KV_BLOCK + position_in_block) * self.head_dim;
        self.offset + which * self.half_bytes() + row * self.dtype.bytes()
    }

    /// The layer's range of a block.
    pub const fn access(&self) -> Access {
        Access { space: Space::Kv, offset: self.offset, bytes: self.bytes() }
    }
}

/// Operands.
#[derive(Debug, Clone, PartialEq)]
pub struct KvWrite {
    /// `[T, Hkv·head_dim]` f32, normed and rotated.
    pub k: Tensor,
    /// `[T, Hkv·head_dim]` f32.
    pub v: Tensor,
    /// Where.
    pub layer: KvLayer,
}

impl Contract for KvWrite {
    fn reads(&self) -> Vec<Access> {
        vec![Access::from(&self.k), Access::from(&self.v)]
    }
    fn writes(&self) -> Vec<Access> {
        vec![self.layer.access()]
    }
    fn cost(&self, c: &Counts) -> Cost {
        Cost {
            read: c.tokens * (self.k.row_bytes() + self.v.row_bytes()),
            written: c.tokens * self.layer.position_bytes(),
            flops: 0,
        }
    }
    fn tensors(&mut self) -> Vec<&mut Tensor> {
        vec![&mut self.k, &mut self.v]
    }
    fn check(&self) {
        assert_eq!([self.k.cols, self.v.cols], [self.layer.heads * self.layer.head_dim; 2]);
        assert_eq!([self.k.dtype, self.v.dtype], [DType::F32; 2]);
        assert!(matches!(self.layer.dtype, DType::F32 | DType::Bf16));
    }
}
