//! Pulls the parts of a fused projection apart: `x` holds for each head its parts one after the other, `out` for each
//! part its heads one after the other. qwen3_next fuses q, k, v and z so, and b and a; SPEC §2.5 step 1. Copies only.

use std::ops::Range;

use crate::op::{Access, Contract, Cost, Counts};
use crate::tensor::{DType, Tensor};

pub(crate) mod cases;
pub(crate) mod reference;
pub(crate) mod simd;

/// Operands. A part's range of x's heads may stay unread; another op takes it.
#[derive(Debug, Clone, PartialEq)]
pub struct SplitHeads {
    /// `[T, heads·stride]` f32.
    pub x: Tensor,
    /// `[T, heads·Σ part]` f32.
    pub out: Tensor,
    /// Heads.
    pub heads: usize,
    /// Elements of each head that go to `out`: consecutive parts of x's heads, from `start` on.
    pub parts: Parts,
}

/// Widths of up to three consecutive parts of a head, unused ones 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parts {
    /// First element within a head.
    pub start: usize,
    /// Elements of each part.
    pub widths: [usize; 3],
}

impl SplitHeads {
    /// Elements from one head to the next in `x`.
    pub const fn stride(&self) -> usize {
        self.x.cols / self.heads
    }

    /// Where each piece of a row goes: elements of x's row, and the first element in out's.
    pub fn pieces(&self) -> impl Iterator<Item = (Range<usize>, usize)> + use<> {
        let (heads, stride, Parts { start, widths }) = (self.heads, self.stride(), self.parts);
        let firsts = [0, widths[0], widths[0] + widths[1]];
        (0..widths.len()).flat_map(move |part| {
            (0..heads).map(move |head| {
                let from = head * stride + start + firsts[part];
                (from..from + widths[part], heads * firsts[part] + head * widths[part])
            })
        })
    }
}

impl Contract for SplitHeads {
    fn reads(&self) -> Vec<Access> {
        vec![Access::from(&self.x)]
    }
    fn writes(&self) -> Vec<Access> {
        vec![Access::from(&self.out)]
    }
    fn cost(&self, c: &Counts) -> Cost {
        let bytes = c.tokens * self.out.row_bytes();
        Cost { read: bytes, written: bytes, flops: 0 }
    }
    fn tensors(&mut self) -> Vec<&mut Tensor> {
        vec![&mut self.x, &mut self.out]
    }
    fn check(&self) {
        assert_eq!([self.x.dtype, self.out.dtype], [DType::F32; 2]);
        assert_eq!(self.x.rows, self.out.rows);
        assert!(self.x.cols.is_multiple_of(self.heads));
        let width: usize = self.parts.widths.iter().sum();
        assert!(self.parts.start + width <= self.stride());
        assert_eq!(self.out.cols, self.heads * width);
    }
}
