//! Grouped matmul over the chosen experts: for each pair p of expert e, `out[p] = x[row(p)] · W_eᵀ`, with
//! row(p) = ⌊p/K⌋ (one row per token) or p (one row per pair). Each chosen expert's weights are read once a step.
//! Arithmetic as in `linear`.

use crate::op::{Access, Contract, Cost, Counts, matrix_reads};
use crate::ops::group_rows::Groups;
use crate::ops::linear::Activations;
use crate::tensor::{DType, Matrix, Tensor};

pub(crate) mod cases;
pub(crate) mod reference;
pub(crate) mod simd;

/// Operands.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpertLinear {
    /// `[T, D]` or, with `by_pair`, `[T·K, D]`.
    pub x: Activations,
    /// Rows of `x` are pairs, not tokens.
    pub by_pair: bool,
    /// `[E, N, D]`.
    pub weight: Matrix,
    /// Pairs by expert.
    pub groups: Groups,
    /// `[T·K, N]` f32, in pair order.
    pub out: Tensor,
}

impl ExpertLinear {
    /// Pairs that share a row of `x`.
    pub const fn pairs_per_row(&self) -> usize {
        if self.by_pair { 1 } else { self.groups.top_k() }
    }
}

impl Contract for ExpertLinear {
    fn reads(&self) -> Vec<Access> {
        let mut reads = matrix_reads(&self.weight);
        reads.extend(self.x.accesses());
        reads.extend(self.groups.accesses());
        reads
    }
    fn writes(&self) -> Vec<Access> {
        vec![Access::from(&self.out)]
    }
    fn cost(&self, c: &Counts) -> Cost {
        let pairs = c.tokens * self.groups.top_k();
        Cost {
            read: c.experts_hit * self.weight.expert_bytes()
                + pairs / self.pairs_per_row() * self.x.row_bytes()
                + self.groups.bytes(c.tokens),
            written: pairs * self.out.row_bytes(),
            flops: 2 * pairs * self.weight.rows * self.weight.cols,
        }
    }
    fn tensors(&mut self) -> Vec<&mut Tensor> {
        let mut all = self.x.tensors();
        all.extend(self.weight.expanded.as_mut());
        all.extend([&mut self.groups.offsets, &mut self.groups.order, &mut self.out]);
        all
    }
    fn check(&self) {
        self.x.check(&self.weight);
        assert_eq!(self.weight.experts(), self.groups.experts());
        assert_eq!(self.out.rows, self.groups.order.rows * self.groups.top_k());
        assert_eq!(self.x.shape().0 * self.pairs_per_row(), self.out.rows);
        assert_eq!((self.out.cols, self.out.dtype), (self.weight.rows, DType::F32));
    }
}
