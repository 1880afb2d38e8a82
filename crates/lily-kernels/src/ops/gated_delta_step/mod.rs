//! Fused, for one token of each sequence: convolution, gates, key and query norms, recurrence and gating, in one pass over
//! the state. Replaces `conv1d_silu`, `gdn_gates`, `l2_norm` and `gated_delta_norm`. The state's rows are cut into parts, so
//! that a head is the work of several threadgroups; the norm over a head then is not known to any of them, and what is written
//! lacks its factor: `y ⊙ weight ⊙ silu(z)`, and the sum of y² of each part. `linear_add` makes up for it.

use crate::op::{Access, Contract, Cost, Counts};
use crate::ops::conv1d_silu::Conv1dSilu;
use crate::ops::gated_delta::GatedDelta;
use crate::ops::gated_rms_norm::GatedRmsNorm;
use crate::ops::gdn_gates::GdnGates;
use crate::ops::l2_norm::L2Norm;
use crate::tensor::Tensor;

pub(crate) mod cases;
pub(crate) mod reference;

/// Rows of a head's state in a part.
pub const PART: usize = 32;

/// The ops it stands for.
#[derive(Debug, Clone, PartialEq)]
pub struct GatedDeltaStep {
    /// Convolution; `out` is not written.
    pub conv: Conv1dSilu,
    /// Decay and beta, not written.
    pub gates: GdnGates,
    /// Norms of queries and keys; `out` is not written.
    pub l2: L2Norm,
    /// The recurrence; `out` is not written.
    pub delta: GatedDelta,
    /// The norm; `out` is not written.
    pub norm: GatedRmsNorm,
    /// `[T, Hv·Dv]` f32: what `norm` gives, without its factors.
    pub out: Tensor,
    /// `[T, Hv·⌈Dv/PART⌉]` f32: sums of y² of each part.
    pub squares: Tensor,
}

impl GatedDeltaStep {
    /// Parts of a head.
    pub const fn parts(&self) -> usize {
        self.delta.v_dim().div_ceil(PART)
    }

    fn small_reads(&self) -> [&Tensor; 4] {
        [&self.gates.a, &self.gates.b, &self.gates.a_log, &self.gates.dt_bias]
    }
}

impl Contract for GatedDeltaStep {
    fn reads(&self) -> Vec<Access> {
        let mut reads = self.conv.reads();
        reads.extend(self.small_reads().map(Access::from));
        reads.extend([&self.delta.state_in, &self.norm.z, &self.norm.weight].map(Access::from));
        reads
    }
    fn writes(&self) -> Vec<Access> {
        [&self.out, &self.squares, &self.conv.state_out, &self.delta.state_out].map(Access::from).to_vec()
    }
    fn cost(&self, c: &Counts) -> Cost {
        let (conv, gates) = (self.conv.cost(c), self.gates.cost(c));
        let (l2, delta, norm) = (self.l2.cost(c), self.delta.cost(c), self.norm.cost(c));
        let of_token = self.gates.a.row_bytes() + self.gates.b.row_bytes() + self.norm.z.row_bytes();
        let constants = self.gates.a_log.bytes() + self.gates.dt_bias.bytes() + self.norm.weight.bytes();
        Cost {
            read: conv.read + c.tokens * of_token + constants + c.sequences * self.delta.state_in.bytes(),
            written: c.tokens * (self.out.row_bytes() + self.squares.row_bytes())
                + c.sequences * (self.conv.state_out.bytes() + self.delta.state_out.bytes()),
            flops: conv.flops + gates.flops + l2.flops + delta.flops + norm.flops,
        }
    }
    fn tensors(&mut self) -> Vec<&mut Tensor> {
        let (conv, gates, delta, norm) = (&mut self.conv, &mut self.gates, &mut self.delta, &mut self.norm);
        vec![
            &mut conv.x,
            &mut conv.weight,
            &mut conv.state_in,
            &mut conv.state_out,
            &mut gates.a,
            &mut gates.b,
            &mut gates.a_log,
            &mut gates.dt_bias,
            &mut delta.state_in,
            &mut delta.state_out,
            &mut norm.z,
            &mut norm.weight,
            &mut self.out,
            &mut self.squares,
        ]
    }
    fn check(&self) {
        assert_eq!((self.l2.x, self.delta.v), (self.conv.out, self.conv.out));
        assert_eq!(self.delta.qk, self.l2.out);
        assert_eq!((self.delta.decay, self.delta.beta), (self.gates.decay, self.gates.beta));
        assert_eq!((self.norm.y, self.norm.weight.cols), (self.delta.out, self.delta.v_dim()));
        assert_eq!((self.out.rows, self.out.cols), (self.norm.out.rows, self.norm.out.cols));
        assert_eq!(self.squares.cols, self.delta.v_heads() * self.parts());
    }
}
