//! Fused, for few rows: the down projections of the chosen experts and the shared one, weighted, added, and added to the
//! residual. Replaces an `expert_linear`, a `linear` and a `moe_output`. Pairs need not be grouped: see `moe_gate_up`.

use crate::op::{Access, Contract, Cost, Counts, matrix_reads};
use crate::ops::expert_linear::ExpertLinear;
use crate::ops::linear::{Activations, Linear};
use crate::ops::moe_gate_up::MOST_ROWS;
use crate::ops::moe_output::MoeOutput;
use crate::tensor::{DType, Tensor};

pub(crate) mod cases;
pub(crate) mod reference;

/// The ops it stands for; only `output.add.out` is written.
#[derive(Debug, Clone, PartialEq)]
pub struct MoeDown {
    /// `[T, K]` u32.
    pub experts: Tensor,
    /// The chosen experts, by pair; its `groups` are not read.
    pub routed: ExpertLinear,
    /// The shared expert.
    pub shared: Linear,
    /// What they are added up to.
    pub output: MoeOutput,
}

impl MoeDown {
    /// Operands that are read row by row.
    pub fn rows(&self) -> Vec<&Tensor> {
        let o = &self.output;
        vec![&self.experts, &o.combine.weights, &o.shared.gate, &o.add.a]
    }
}

impl Contract for MoeDown {
    fn reads(&self) -> Vec<Access> {
        let mut reads = matrix_reads(&self.routed.weight);
        reads.extend(matrix_reads(&self.shared.weight));
        reads.extend(self.routed.x.accesses());
        reads.extend(self.shared.x.accesses());
        reads.extend(self.rows().into_iter().map(Access::from));
        reads
    }
    fn writes(&self) -> Vec<Access> {
        self.output.writes()
    }
    fn cost(&self, c: &Counts) -> Cost {
        let rows: usize = self.rows().into_iter().map(Tensor::row_bytes).sum();
        let inner = self.experts.cols * self.routed.x.row_bytes() + self.shared.x.row_bytes();
        Cost {
            read: c.experts_hit * self.routed.weight.expert_bytes()
                + self.shared.weight.expert_bytes()
                + c.tokens * (rows + inner),
            written: c.tokens * self.output.add.out.row_bytes(),
            flops: self.routed.cost(c).flops + self.shared.cost(c).flops + self.output.cost(c).flops,
        }
    }
    fn tensors(&mut self) -> Vec<&mut Tensor> {
        let o = &mut self.output;
        let mut all = vec![&mut self.experts, &mut o.combine.weights, &mut o.shared.gate, &mut o.add.a, &mut o.add.out];
        all.extend(self.routed.x.tensors());
        all.extend(self.shared.x.tensors());
        all
    }
    fn check(&self) {
        self.routed.check();
        self.shared.check();
        self.output.check();
        assert!(matches!((self.routed.x, self.shared.x), (Activations::Full(_), Activations::Full(_))));
        assert_eq!((self.output.combine.x, self.output.shared.shared), (self.routed.out, self.shared.out));
        // One expert a token is by pair and by token alike.
        assert!(self.routed.by_pair || self.experts.cols == 1);
        assert_eq!((self.experts.dtype, self.experts.cols), (DType::U32, self.output.combine.weights.cols));
        assert!(self.experts.rows <= MOST_ROWS, "many rows are grouped by expert");
    }
}
