//! Causal depthwise convolution over time, then silu, and the conv state of the next step:
//! `out[t, c] = silu(Σ_j weight[c, j] · x[t − taps + 1 + j, c])`; rows before the step come from the state, which
//! holds the last `taps − 1` raw rows, oldest first. SPEC §2.5 step 2.

use crate::op::{Access, Contract, Cost, Counts};
use crate::tensor::{DType, Space, Tensor};

pub(crate) mod cases;
pub(crate) mod reference;
pub(crate) mod simd;

/// Operands.
#[derive(Debug, Clone, PartialEq)]
pub struct Conv1dSilu {
    /// `[T, C]` f32, raw projections.
    pub x: Tensor,
    /// `[taps, C]` f32: tap-major, so that channels are contiguous; the last tap is the current row.
    pub weight: Tensor,
    /// `[taps − 1, C]` f32 in `Space::StateIn`.
    pub state_in: Tensor,
    /// The same range of `Space::StateOut`.
    pub state_out: Tensor,
    /// `[T, C]` f32.
    pub out: Tensor,
}

impl Contract for Conv1dSilu {
    fn reads(&self) -> Vec<Access> {
        vec![Access::from(&self.x), Access::from(&self.weight), Access::from(&self.state_in)]
    }
    fn writes(&self) -> Vec<Access> {
        vec![Access::from(&self.out), Access::from(&self.state_out)]
    }
    fn cost(&self, c: &Counts) -> Cost {
        Cost {
            read: c.tokens * self.x.row_bytes() + self.weight.bytes() + c.sequences * self.state_in.bytes(),
            written: c.tokens * self.out.row_bytes() + c.sequences * self.state_out.bytes(),
            flops: c.tokens * self.x.cols * (2 * self.weight.rows + 4),
        }
    }
    fn tensors(&mut self) -> Vec<&mut Tensor> {
        vec![&mut self.x, &mut self.weight, &mut self.state_in, &mut self.state_out, &mut self.out]
    }
    fn check(&self) {
        for t in [&self.x, &self.weight, &self.state_in, &self.state_out, &self.out] {
            assert_eq!((t.dtype, t.cols), (DType::F32, self.x.cols));
        }
        assert_eq!([self.state_in.rows + 1, self.state_out.rows + 1], [self.weight.rows; 2]);
        assert_eq!((self.state_in.space, self.state_out.space), (Space::StateIn, Space::StateOut));
        assert_eq!(self.x.rows, self.out.rows);
    }
}
