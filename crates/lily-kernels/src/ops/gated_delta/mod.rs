//! Gated delta rule, on the CPU always as the recurrence (so that any chunking gives the same bytes). Per value head h
//! with key head κ = ⌊h·Hk/Hv⌋, state S `[Dv, Dk]` f32, for each token:
//! `S ← decay·S; δ = beta·(v − S·k̂); S ← S + δ·k̂ᵀ; y = S·q̂`. SPEC §2.5 step 6.

use crate::op::{Access, Contract, Cost, Counts};
use crate::tensor::{DType, Space, Tensor};

pub(crate) mod cases;
pub(crate) mod reference;
pub(crate) mod simd;

/// Operands; all f32.
#[derive(Debug, Clone, PartialEq)]
pub struct GatedDelta {
    /// `[T, 2·Hk·Dk]`: normed queries, then normed keys.
    pub qk: Tensor,
    /// `[T, 2·Hk·Dk + Hv·Dv]`: the convolved projection; values are its tail.
    pub v: Tensor,
    /// `[T, Hv]`.
    pub decay: Tensor,
    /// `[T, Hv]`.
    pub beta: Tensor,
    /// `[Hv·Dv, Dk]` in `Space::StateIn`.
    pub state_in: Tensor,
    /// The same range of `Space::StateOut`.
    pub state_out: Tensor,
    /// `[T, Hv·Dv]`.
    pub out: Tensor,
}

impl GatedDelta {
    /// Value heads.
    pub const fn v_heads(&self) -> usize {
        self.decay.cols
    }

    /// Key heads.
    pub const fn k_heads(&self) -> usize {
        self.qk.cols / (2 * self.k_dim())
    }

    /// Elements of a key head.
    pub const fn k_dim(&self) -> usize {
        self.state_in.cols
    }

    /// Elements of a value head.
    pub const fn v_dim(&self) -> usize {
        self.out.cols / self.v_heads()
    }
}

impl Contract for GatedDelta {
    fn reads(&self) -> Vec<Access> {
        [&self.qk, &self.v, &self.decay, &self.beta, &self.state_in].map(Access::from).to_vec()
    }
    fn writes(&self) -> Vec<Access> {
        vec![Access::from(&self.out), Access::from(&self.state_out)]
    }
    fn cost(&self, c: &Counts) -> Cost {
        let gates = 2 * self.decay.row_bytes();
        Cost {
            read: c.tokens * (self.qk.row_bytes() + self.out.row_bytes() + gates) + c.sequences * self.state_in.bytes(),
            written: c.tokens * self.out.row_bytes() + c.sequences * self.state_out.bytes(),
            flops: 7 * c.tokens * self.state_in.rows * self.state_in.cols,
        }
    }
    fn tensors(&mut self) -> Vec<&mut Tensor> {
        vec![
            &mut self.qk,
            &mut self.v,
            &mut self.decay,
            &mut self.beta,
            &mut self.state_in,
            &mut self.state_out,
            &mut self.out,
        ]
    }
    fn check(&self) {
        for t in [&self.qk, &self.v, &self.decay, &self.beta, &self.state_in, &self.state_out, &self.out] {
            assert_eq!(t.dtype, DType::F32);
        }
        assert_eq!((self.state_in.space, self.state_out.space), (Space::StateIn, Space::StateOut));
        assert_eq!(self.state_in.rows, self.out.cols);
        assert_eq!(self.v.cols, self.qk.cols + self.out.cols);
        assert_eq!(self.v_heads() % self.k_heads(), 0);
    }
}
