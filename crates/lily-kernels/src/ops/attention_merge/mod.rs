//! Puts the parts of `attention_parts` together and gates the result: `out = attention ⊙ σ(gate)`. The parts of a head are
//! weighted by `exp(their largest score − the largest of all)`.

use crate::op::{Access, Contract, Cost, Counts};
use crate::ops::attention_parts::AttentionParts;
use crate::ops::sigmoid_gate::SigmoidGate;
use crate::tensor::Tensor;

pub(crate) mod cases;
pub(crate) mod reference;

/// Operands.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionMerge {
    /// What made the parts.
    pub of: AttentionParts,
    /// The gate; its `x` is the attention's output, not written.
    pub gate: SigmoidGate,
}

impl Contract for AttentionMerge {
    fn reads(&self) -> Vec<Access> {
        vec![Access::from(&self.of.parts), Access::from(&self.gate.gate)]
    }
    fn writes(&self) -> Vec<Access> {
        self.gate.writes()
    }
    fn cost(&self, c: &Counts) -> Cost {
        let (parts, gate) = (self.of.part_bytes(c), self.gate.cost(c));
        let row = c.tokens * self.gate.x.row_bytes();
        Cost { read: parts + gate.read - row, written: gate.written, flops: gate.flops + parts / 2 }
    }
    fn tensors(&mut self) -> Vec<&mut Tensor> {
        vec![&mut self.of.parts, &mut self.gate.gate, &mut self.gate.out]
    }
    fn check(&self) {
        self.of.check();
        self.gate.check();
        assert_eq!(self.gate.x, self.of.attention.out);
        assert_eq!(self.gate.heads, self.of.attention.q_heads());
    }
}
