//! L2 norm of the query and key heads of the convolved projection, per head of `dim` elements:
//! `k̂ = k · rsqrt(Σk² + 1e-6)`, `q̂ = q · rsqrt(Σq² + 1e-6) · dim^−½`. SPEC §2.5 step 4.

use crate::op::{Access, Contract, Cost, Counts};
use crate::tensor::{DType, Tensor};

pub(crate) mod cases;
pub(crate) mod reference;
pub(crate) mod simd;

/// Added to the sum of squares.
pub const EPS: f32 = 1e-6;

/// Operands.
#[derive(Debug, Clone, PartialEq)]
pub struct L2Norm {
    /// `[T, ≥ 2·Hk·dim]` f32: queries, then keys, then what is left alone.
    pub x: Tensor,
    /// `[T, 2·Hk·dim]` f32: normed queries, then normed keys.
    pub out: Tensor,
    /// Elements of one head.
    pub dim: usize,
}

impl L2Norm {
    /// Key heads, as many as query heads.
    pub const fn heads(&self) -> usize {
        self.out.cols / (2 * self.dim)
    }
}

impl Contract for L2Norm {
    fn reads(&self) -> Vec<Access> {
        vec![Access::from(&self.x)]
    }
    fn writes(&self) -> Vec<Access> {
        vec![Access::from(&self.out)]
    }
    fn cost(&self, c: &Counts) -> Cost {
        let bytes = c.tokens * self.out.row_bytes();
        Cost { read: bytes, written: bytes, flops: 3 * c.tokens * self.out.cols }
    }
    fn tensors(&mut self) -> Vec<&mut Tensor> {
        vec![&mut self.x, &mut self.out]
    }
    fn check(&self) {
        assert_eq!([self.x.dtype, self.out.dtype], [DType::F32; 2]);
        assert_eq!(self.out.cols % (2 * self.dim), 0);
        assert!(self.x.cols >= self.out.cols && self.x.rows == self.out.rows);
    }
}
