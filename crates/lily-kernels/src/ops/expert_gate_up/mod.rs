//! Fused: two `expert_linear` on the same rows, then `swiglu`; the two projections never reach memory. Gives their
//! bytes.

use crate::op::{Access, Contract, Cost, Counts, matrix_reads};
use crate::ops::expert_linear::ExpertLinear;
use crate::ops::swiglu::SwiGlu;
use crate::tensor::Tensor;

pub(crate) mod cases;
pub(crate) mod reference;
pub(crate) mod simd;

/// The three ops it stands for; `gate.out` and `up.out` are not written.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpertGateUp {
    /// Gate projection.
    pub gate: ExpertLinear,
    /// Up projection, of the same rows.
    pub up: ExpertLinear,
    /// Activation.
    pub act: SwiGlu,
}

impl Contract for ExpertGateUp {
    fn reads(&self) -> Vec<Access> {
        let mut reads = self.gate.reads();
        reads.extend(matrix_reads(&self.up.weight));
        reads
    }
    fn writes(&self) -> Vec<Access> {
        vec![Access::from(&self.act.out)]
    }
    fn cost(&self, c: &Counts) -> Cost {
        let (gate, up, act) = (self.gate.cost(c), self.up.cost(c), self.act.cost(c));
        Cost {
            read: gate.read + c.experts_hit * self.up.weight.expert_bytes(),
            written: act.written,
            flops: gate.flops + up.flops + act.flops,
        }
    }
    fn tensors(&mut self) -> Vec<&mut Tensor> {
        // Both projections name the same rows and groups; the memory plan has to move both.
        let mut all = self.gate.x.tensors();
        all.extend(self.up.x.tensors());
        all.extend([&mut self.gate.weight, &mut self.up.weight].into_iter().filter_map(|w| w.expanded.as_mut()));
        for groups in [&mut self.gate.groups, &mut self.up.groups] {
            all.extend([&mut groups.offsets, &mut groups.order]);
        }
        all.push(&mut self.act.out);
        all
    }
    fn check(&self) {
        assert_eq!((self.gate.x, self.gate.groups), (self.up.x, self.up.groups));
        assert_eq!((self.gate.out, self.up.out), (self.act.gate, self.act.up));
        assert_eq!(self.gate.weight.rows, self.up.weight.rows);
    }
}
