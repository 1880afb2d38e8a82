//! Fused: q and k RMS norm, partial rotary embedding, KV cache write. Replaces two `rms_norm`, two `rope` and a
//! `kv_write`, and gives their bytes.

use crate::op::{Access, Contract, Cost, Counts};
use crate::ops::kv_write::KvWrite;
use crate::ops::rms_norm::RmsNorm;
use crate::ops::rope::Rope;
use crate::tensor::Tensor;

pub(crate) mod cases;
pub(crate) mod reference;
pub(crate) mod simd;

/// The five ops it stands for; only the rotated queries and the cache are written.
#[derive(Debug, Clone, PartialEq)]
pub struct QkNormRopeWrite {
    /// Norm of the queries.
    pub q_norm: RmsNorm,
    /// Norm of the keys.
    pub k_norm: RmsNorm,
    /// Rotation of the queries; `out` is the result.
    pub q_rope: Rope,
    /// Rotation of the keys.
    pub k_rope: Rope,
    /// Cache write; its `v` is an operand, its `k` stays on chip.
    pub write: KvWrite,
}

impl Contract for QkNormRopeWrite {
    fn reads(&self) -> Vec<Access> {
        let mut reads = self.q_norm.reads();
        reads.extend(self.k_norm.reads());
        reads.extend([Access::from(&self.q_rope.inv_freq), Access::from(&self.write.v)]);
        reads
    }
    fn writes(&self) -> Vec<Access> {
        vec![Access::from(&self.q_rope.out), self.write.layer.access()]
    }
    fn cost(&self, c: &Counts) -> Cost {
        let q = self.q_norm.cost(c);
        let k = self.k_norm.cost(c);
        Cost {
            read: q.read + k.read + self.q_rope.inv_freq.bytes() + c.tokens * self.write.v.row_bytes(),
            written: c.tokens * (self.q_rope.out.row_bytes() + self.write.layer.position_bytes()),
            flops: q.flops + k.flops + self.q_rope.cost(c).flops + self.k_rope.cost(c).flops,
        }
    }
    fn tensors(&mut self) -> Vec<&mut Tensor> {
        vec![
            &mut self.q_norm.x,
            &mut self.q_norm.weight,
            &mut self.k_norm.x,
            &mut self.k_norm.weight,
            &mut self.q_rope.inv_freq,
            &mut self.k_rope.inv_freq,
            &mut self.q_rope.out,
            &mut self.write.v,
        ]
    }
    fn check(&self) {
        assert_eq!(self.q_rope.inv_freq, self.k_rope.inv_freq);
        assert_eq!(self.q_norm.out, self.q_rope.x);
        assert_eq!(self.k_norm.out, self.k_rope.x);
        assert_eq!(self.k_rope.out, self.write.k);
    }
}
