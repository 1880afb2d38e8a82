//! Gates of the Gated DeltaNet, one scalar per token and value head:
//! `beta = σ(b)`, `decay = exp(−exp(A_log) · softplus(a + dt_bias))`. SPEC §2.5 step 5.

use crate::op::{Access, Contract, Cost, Counts};
use crate::tensor::{DType, Tensor};

pub(crate) mod cases;
pub(crate) mod reference;
pub(crate) mod simd;

/// Operands; all f32.
#[derive(Debug, Clone, PartialEq)]
pub struct GdnGates {
    /// `[T, Hv]`.
    pub a: Tensor,
    /// `[T, Hv]`.
    pub b: Tensor,
    /// `[1, Hv]`.
    pub a_log: Tensor,
    /// `[1, Hv]`.
    pub dt_bias: Tensor,
    /// `[T, Hv]`, in (0, 1).
    pub decay: Tensor,
    /// `[T, Hv]`, in (0, 1).
    pub beta: Tensor,
}

impl Contract for GdnGates {
    fn reads(&self) -> Vec<Access> {
        [&self.a, &self.b, &self.a_log, &self.dt_bias].map(Access::from).to_vec()
    }
    fn writes(&self) -> Vec<Access> {
        vec![Access::from(&self.decay), Access::from(&self.beta)]
    }
    fn cost(&self, c: &Counts) -> Cost {
        Cost {
            read: 2 * c.tokens * self.a.row_bytes() + self.a_log.bytes() + self.dt_bias.bytes(),
            written: 2 * c.tokens * self.decay.row_bytes(),
            flops: 10 * c.tokens * self.a.cols,
        }
    }
    fn tensors(&mut self) -> Vec<&mut Tensor> {
        vec![&mut self.a, &mut self.b, &mut self.a_log, &mut self.dt_bias, &mut self.decay, &mut self.beta]
    }
    fn check(&self) {
        for t in [&self.a, &self.b, &self.a_log, &self.dt_bias, &self.decay, &self.beta] {
            assert_eq!((t.dtype, t.cols), (DType::F32, self.a.cols));
        }
    }
}
