//! RMS norm of `heads` runs of `dim` elements in each row, all with one weight:
//! `out = x · rsqrt(mean(x²) + eps) · weight`. Runs may be strided, so that a projection's query halves are normed
//! where they lie. SPEC §2.2.

use crate::op::{Access, Contract, Cost, Counts, Rows};
use crate::tensor::{DType, Tensor};

pub(crate) mod cases;
pub(crate) mod reference;
pub(crate) mod simd;

/// Operands.
#[derive(Debug, Clone, PartialEq)]
pub struct RmsNorm {
    /// Which rows.
    pub rows: Rows,
    /// `[R, ≥ heads·stride]` f32; head h starts at element `h·stride`.
    pub x: Tensor,
    /// `[1, dim]` f32: the factor itself (never 1 + w).
    pub weight: Tensor,
    /// `[R, heads·dim]` f32.
    pub out: Tensor,
    /// Runs per row; 1 for a whole-row norm.
    pub heads: usize,
    /// Elements from one run to the next in `x`.
    pub stride: usize,
    /// Added to the mean of squares.
    pub eps: f32,
}

impl RmsNorm {
    /// Elements of one run.
    pub const fn dim(&self) -> usize {
        self.weight.cols
    }
}

impl Contract for RmsNorm {
    fn reads(&self) -> Vec<Access> {
        vec![Access::from(&self.x), Access::from(&self.weight)]
    }
    fn writes(&self) -> Vec<Access> {
        vec![Access::from(&self.out)]
    }
    fn cost(&self, c: &Counts) -> Cost {
        let rows = c.rows(self.rows);
        Cost {
            read: rows * self.out.row_bytes() + self.weight.bytes(),
            written: rows * self.out.row_bytes(),
            flops: 4 * rows * self.out.cols,
        }
    }
    fn tensors(&mut self) -> Vec<&mut Tensor> {
        vec![&mut self.x, &mut self.weight, &mut self.out]
    }
    fn check(&self) {
        assert_eq!([self.x.dtype, self.weight.dtype, self.out.dtype], [DType::F32; 3]);
        assert_eq!(self.out.cols, self.heads * self.dim());
        assert!(self.stride >= self.dim() && self.x.cols >= (self.heads - 1) * self.stride + self.dim());
        assert_eq!(self.x.rows, self.out.rows);
    }
}
