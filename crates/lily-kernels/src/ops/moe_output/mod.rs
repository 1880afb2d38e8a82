//! Fused: `combine_experts`, `shared_expert_add` and the residual `add`. Gives their bytes.

use crate::op::{Access, Contract, Cost, Counts};
use crate::ops::add::Add;
use crate::ops::combine_experts::CombineExperts;
use crate::ops::shared_expert_add::SharedExpertAdd;
use crate::tensor::Tensor;

pub(crate) mod cases;
pub(crate) mod reference;
pub(crate) mod simd;

/// The three ops it stands for; only `add.out` is written.
#[derive(Debug, Clone, PartialEq)]
pub struct MoeOutput {
    /// Routed experts.
    pub combine: CombineExperts,
    /// Shared expert.
    pub shared: SharedExpertAdd,
    /// Residual: `a` is the residual stream, `b` the block's output.
    pub add: Add,
}

impl Contract for MoeOutput {
    fn reads(&self) -> Vec<Access> {
        let mut reads = self.combine.reads();
        reads.extend([&self.shared.shared, &self.shared.gate, &self.add.a].map(Access::from));
        reads
    }
    fn writes(&self) -> Vec<Access> {
        vec![Access::from(&self.add.out)]
    }
    fn cost(&self, c: &Counts) -> Cost {
        let (combine, shared, add) = (self.combine.cost(c), self.shared.cost(c), self.add.cost(c));
        let row = c.tokens * self.add.out.row_bytes();
        Cost {
            read: combine.read + shared.read + add.read - 2 * row,
            written: add.written,
            flops: combine.flops + shared.flops + add.flops,
        }
    }
    fn tensors(&mut self) -> Vec<&mut Tensor> {
        vec![
            &mut self.combine.x,
            &mut self.combine.weights,
            &mut self.shared.shared,
            &mut self.shared.gate,
            &mut self.add.a,
            &mut self.add.out,
        ]
    }
    fn check(&self) {
        assert_eq!(self.combine.out, self.shared.x);
        assert_eq!(self.shared.out, self.add.b);
    }
}
