//! Output norm and gate of the Gated DeltaNet, per value head: `out = rms_norm(y; weight) ⊙ silu(z)`; the weight is
//! plain, the norm comes before the gate. SPEC §2.5 step 7.

use crate::op::{Access, Contract, Cost, Counts};
use crate::tensor::{DType, Tensor};

pub(crate) mod cases;
pub(crate) mod reference;
pub(crate) mod simd;

/// Operands; all f32.
#[derive(Debug, Clone, PartialEq)]
pub struct GatedRmsNorm {
    /// `[T, Hv·Dv]`.
    pub y: Tensor,
    /// `[T, Hv·Dv]`.
    pub z: Tensor,
    /// `[1, Dv]`.
    pub weight: Tensor,
    /// `[T, Hv·Dv]`.
    pub out: Tensor,
    /// Added to the mean of squares.
    pub eps: f32,
}

impl Contract for GatedRmsNorm {
    fn reads(&self) -> Vec<Access> {
        [&self.y, &self.z, &self.weight].map(Access::from).to_vec()
    }
    fn writes(&self) -> Vec<Access> {
        vec![Access::from(&self.out)]
    }
    fn cost(&self, c: &Counts) -> Cost {
        Cost {
            read: 2 * c.tokens * self.y.row_bytes() + self.weight.bytes(),
            written: c.tokens * self.out.row_bytes(),
            flops: 9 * c.tokens * self.y.cols,
        }
    }
    fn tensors(&mut self) -> Vec<&mut Tensor> {
        vec![&mut self.y, &mut self.z, &mut self.weight, &mut self.out]
    }
    fn check(&self) {
        for t in [&self.y, &self.z, &self.out] {
            assert_eq!((t.dtype, t.cols), (DType::F32, self.y.cols));
        }
        assert_eq!(self.y.cols % self.weight.cols, 0);
    }
}
