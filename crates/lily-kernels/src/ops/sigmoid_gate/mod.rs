//! `out = x ⊙ σ(gate)`. The gate may be strided: q_proj interleaves query and gate per head. SPEC §2.4 step 6.

use crate::op::{Access, Contract, Cost, Counts};
use crate::tensor::{DType, Tensor};

pub(crate) mod cases;
pub(crate) mod reference;
pub(crate) mod simd;

/// Operands.
#[derive(Debug, Clone, PartialEq)]
pub struct SigmoidGate {
    /// `[T, heads·dim]` f32.
    pub x: Tensor,
    /// `[T, heads·stride]` f32; head h's gate starts at element `h·stride + start`.
    pub gate: Tensor,
    /// As `x`.
    pub out: Tensor,
    /// Heads.
    pub heads: usize,
    /// Elements from one head to the next in `gate`.
    pub stride: usize,
    /// First gate element within a head.
    pub start: usize,
}

impl Contract for SigmoidGate {
    fn reads(&self) -> Vec<Access> {
        vec![Access::from(&self.x), Access::from(&self.gate)]
    }
    fn writes(&self) -> Vec<Access> {
        vec![Access::from(&self.out)]
    }
    fn cost(&self, c: &Counts) -> Cost {
        Cost {
            read: 2 * c.tokens * self.x.row_bytes(),
            written: c.tokens * self.out.row_bytes(),
            flops: 4 * c.tokens * self.x.cols,
        }
    }
    fn tensors(&mut self) -> Vec<&mut Tensor> {
        vec![&mut self.x, &mut self.gate, &mut self.out]
    }
    fn check(&self) {
        assert_eq!([self.x.dtype, self.gate.dtype, self.out.dtype], [DType::F32; 3]);
        assert_eq!((self.x.rows, self.x.cols), (self.out.rows, self.out.cols));
        assert_eq!(self.gate.cols, self.heads * self.stride);
        assert!(self.start + self.x.cols / self.heads <= self.stride);
    }
}
