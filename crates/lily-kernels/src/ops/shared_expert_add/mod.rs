//! `out = x + σ(gate) · shared`: the shared expert joins the routed ones, one gate per token. SPEC §2.6 step 3.

use crate::op::{Access, Contract, Cost, Counts};
use crate::tensor::{DType, Tensor};

pub(crate) mod cases;
pub(crate) mod reference;
pub(crate) mod simd;

/// Operands; all f32.
#[derive(Debug, Clone, PartialEq)]
pub struct SharedExpertAdd {
    /// `[T, D]`, the routed experts' sum.
    pub x: Tensor,
    /// `[T, D]`, the shared expert's output.
    pub shared: Tensor,
    /// `[T, 1]`, before the sigmoid.
    pub gate: Tensor,
    /// `[T, D]`.
    pub out: Tensor,
}

impl Contract for SharedExpertAdd {
    fn reads(&self) -> Vec<Access> {
        [&self.x, &self.shared, &self.gate].map(Access::from).to_vec()
    }
    fn writes(&self) -> Vec<Access> {
        vec![Access::from(&self.out)]
    }
    fn cost(&self, c: &Counts) -> Cost {
        Cost {
            read: c.tokens * (2 * self.x.row_bytes() + self.gate.row_bytes()),
            written: c.tokens * self.out.row_bytes(),
            flops: 2 * c.tokens * self.out.cols,
        }
    }
    fn tensors(&mut self) -> Vec<&mut Tensor> {
        vec![&mut self.x, &mut self.shared, &mut self.gate, &mut self.out]
    }
    fn check(&self) {
        for t in [&self.x, &self.shared, &self.out] {
            assert_eq!((t.dtype, t.rows, t.cols), (DType::F32, self.out.rows, self.out.cols));
        }
        assert_eq!((self.gate.dtype, self.gate.cols), (DType::F32, 1));
    }
}
