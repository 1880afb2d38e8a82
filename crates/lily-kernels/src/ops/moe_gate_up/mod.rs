//! Fused, for few rows: gate, up and SwiGLU of the chosen experts and of the shared one. Replaces an `expert_gate_up`, two
//! `linear` and a `swiglu`. The experts come as the router chose them: pairs need not be grouped, because rows are few enough
//! to look for those that share an expert.

use crate::op::{Access, Contract, Cost, Counts, matrix_reads};
use crate::ops::expert_gate_up::ExpertGateUp;
use crate::ops::linear::{Activations, Linear};
use crate::ops::swiglu::SwiGlu;
use crate::tensor::{DType, Tensor};

pub(crate) mod cases;
pub(crate) mod reference;

/// Rows, at most.
pub const MOST_ROWS: usize = 4;

/// The ops it stands for; only the two activations' outputs are written.
#[derive(Debug, Clone, PartialEq)]
pub struct MoeGateUp {
    /// `[T, K]` u32.
    pub experts: Tensor,
    /// The chosen experts; its `groups` are not read.
    pub routed: ExpertGateUp,
    /// Gate projection of the shared expert.
    pub gate: Linear,
    /// Its up projection.
    pub up: Linear,
    /// Its activation.
    pub act: SwiGlu,
}

impl MoeGateUp {
    /// The matrices: gate and up of the chosen experts, gate and up of the shared one.
    pub fn weights(&self) -> [&crate::tensor::Matrix; 4] {
        [&self.routed.gate.weight, &self.routed.up.weight, &self.gate.weight, &self.up.weight]
    }
}

impl Contract for MoeGateUp {
    fn reads(&self) -> Vec<Access> {
        let mut reads: Vec<Access> = self.weights().into_iter().flat_map(matrix_reads).collect();
        reads.push(Access::from(&self.experts));
        reads.extend(self.gate.x.accesses());
        reads
    }
    fn writes(&self) -> Vec<Access> {
        vec![Access::from(&self.routed.act.out), Access::from(&self.act.out)]
    }
    fn cost(&self, c: &Counts) -> Cost {
        let [gate, up, shared_gate, shared_up] = self.weights().map(|m| m.expert_bytes());
        let (routed, act) = (self.routed.cost(c), self.act.cost(c));
        Cost {
            read: c.experts_hit * (gate + up)
                + shared_gate
                + shared_up
                + c.tokens * (self.experts.row_bytes() + self.gate.x.row_bytes()),
            written: routed.written + act.written,
            flops: routed.flops + self.gate.cost(c).flops + self.up.cost(c).flops + act.flops,
        }
    }
    fn tensors(&mut self) -> Vec<&mut Tensor> {
        let mut all = vec![&mut self.experts, &mut self.routed.act.out, &mut self.act.out];
        for x in [&mut self.routed.gate.x, &mut self.routed.up.x, &mut self.gate.x, &mut self.up.x] {
            all.extend(x.tensors());
        }
        all
    }
    fn check(&self) {
        self.routed.check();
        self.gate.check();
        self.up.check();
        let x = self.gate.x;
        assert!(matches!(x, Activations::Full(_)));
        assert_eq!((self.up.x, self.routed.gate.x, self.routed.gate.by_pair), (x, x, false));
        assert_eq!((self.gate.out, self.up.out), (self.act.gate, self.act.up));
        assert_eq!(self.gate.weight.rows, self.up.weight.rows);
        assert_eq!((self.experts.dtype, self.experts.cols), (DType::U32, self.routed.gate.groups.top_k()));
        assert!(self.experts.rows <= MOST_ROWS, "many rows are grouped by expert");
    }
}
