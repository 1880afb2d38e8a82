//! Partial rotary embedding, half-split pairing, on each head's first `rotary_dim` elements; the rest passes
//! through. For i < rotary_dim/2, θ = position · base^(−2i/rotary_dim), one product in f32 (at far positions its
//! rounding is part of the model):
//! `out[i] = x[i]·cosθ − x[i+h]·sinθ`, `out[i+h] = x[i+h]·cosθ + x[i]·sinθ`, h = rotary_dim/2. SPEC §2.4.

use crate::op::{Access, Contract, Cost, Counts};
use crate::tensor::{DType, Tensor};

pub(crate) mod cases;
pub(crate) mod reference;
pub(crate) mod simd;

/// Operands.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// `[T, heads·head_dim]` f32.
    pub x: Tensor,
    /// `[1, rotary_dim / 2]` f32, `base^(−2i/rotary_dim)`.
    pub inv_freq: Tensor,
    /// As `x`.
    pub out: Tensor,
    /// Elements of one head.
    pub head_dim: usize,
}

impl Contract for Rope {
    fn reads(&self) -> Vec<Access> {
        vec![Access::from(&self.x), Access::from(&self.inv_freq)]
    }
    fn writes(&self) -> Vec<Access> {
        vec![Access::from(&self.out)]
    }
    fn cost(&self, c: &Counts) -> Cost {
        let heads = self.x.cols / self.head_dim;
        Cost {
            read: c.tokens * self.x.row_bytes() + self.inv_freq.bytes(),
            written: c.tokens * self.out.row_bytes(),
            flops: c.tokens * heads * self.inv_freq.cols * 6,
        }
    }
    fn tensors(&mut self) -> Vec<&mut Tensor> {
        vec![&mut self.x, &mut self.inv_freq, &mut self.out]
    }
    fn check(&self) {
        assert_eq!([self.x.dtype, self.inv_freq.dtype, self.out.dtype], [DType::F32; 3]);
        assert_eq!((self.x.rows, self.x.cols), (self.out.rows, self.out.cols));
        assert_eq!(self.x.cols % self.head_dim, 0);
        assert!(2 * self.inv_freq.cols <= self.head_dim);
    }
}
