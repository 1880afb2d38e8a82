//! Fused: `gated_delta`, then `gated_rms_norm` of its output, which never leaves the core. Gives their bytes.

use crate::op::{Access, Contract, Cost, Counts};
use crate::ops::gated_delta::GatedDelta;
use crate::ops::gated_rms_norm::GatedRmsNorm;
use crate::tensor::Tensor;

pub(crate) mod cases;
pub(crate) mod reference;
pub(crate) mod simd;

/// The two ops it stands for; `delta.out` is not written.
#[derive(Debug, Clone, PartialEq)]
pub struct GatedDeltaNorm {
    /// The recurrence.
    pub delta: GatedDelta,
    /// The norm; its `y` is `delta.out`.
    pub norm: GatedRmsNorm,
}

impl Contract for GatedDeltaNorm {
    fn reads(&self) -> Vec<Access> {
        let mut reads = self.delta.reads();
        reads.extend([Access::from(&self.norm.z), Access::from(&self.norm.weight)]);
        reads
    }
    fn writes(&self) -> Vec<Access> {
        vec![Access::from(&self.norm.out), Access::from(&self.delta.state_out)]
    }
    fn cost(&self, c: &Counts) -> Cost {
        let (delta, norm) = (self.delta.cost(c), self.norm.cost(c));
        let between = c.tokens * self.delta.out.row_bytes();
        Cost {
            read: delta.read + norm.read - between,
            written: delta.written + norm.written - between,
            flops: delta.flops + norm.flops,
        }
    }
    fn tensors(&mut self) -> Vec<&mut Tensor> {
        let d = &mut self.delta;
        vec![
            &mut d.qk,
            &mut d.v,
            &mut d.decay,
            &mut d.beta,
            &mut d.state_in,
            &mut d.state_out,
            &mut self.norm.z,
            &mut self.norm.weight,
            &mut self.norm.out,
        ]
    }
    fn check(&self) {
        assert_eq!(self.delta.out, self.norm.y);
        assert_eq!(self.delta.v_dim(), self.norm.weight.cols);
    }
}
