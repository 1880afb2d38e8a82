//! `out = silu(gate) ⊙ up`, silu(x) = x·σ(x).

use crate::op::{Access, Contract, Cost, Counts};
use crate::tensor::{DType, Tensor};

pub(crate) mod cases;
pub(crate) mod reference;
pub(crate) mod simd;

/// Operands; all `[R, I]` f32 with R = `per_token` rows a token.
#[derive(Debug, Clone, PartialEq)]
pub struct SwiGlu {
    /// Gate projection.
    pub gate: Tensor,
    /// Up projection.
    pub up: Tensor,
    /// Result.
    pub out: Tensor,
    /// Rows per token: 1, or top-k for experts.
    pub per_token: usize,
}

impl Contract for SwiGlu {
    fn reads(&self) -> Vec<Access> {
        vec![Access::from(&self.gate), Access::from(&self.up)]
    }
    fn writes(&self) -> Vec<Access> {
        vec![Access::from(&self.out)]
    }
    fn cost(&self, c: &Counts) -> Cost {
        let rows = c.tokens * self.per_token;
        Cost {
            read: 2 * rows * self.gate.row_bytes(),
            written: rows * self.out.row_bytes(),
            flops: 5 * rows * self.out.cols,
        }
    }
    fn tensors(&mut self) -> Vec<&mut Tensor> {
        vec![&mut self.gate, &mut self.up, &mut self.out]
    }
    fn check(&self) {
        for t in [&self.gate, &self.up, &self.out] {
            assert_eq!((t.dtype, t.rows, t.cols), (DType::F32, self.out.rows, self.out.cols));
        }
    }
}
