//! Fused: an RMS norm and the projections that read it. Replaces a `rms_norm` and up to four `linear`. The normed rows are
//! written all the same, by the way: others may read them.

use crate::op::{Access, Contract, Cost, Counts, matrix_reads};
use crate::ops::linear::{Activations, Linear};
use crate::ops::rms_norm::RmsNorm;
use crate::tensor::Tensor;

pub(crate) mod cases;
pub(crate) mod reference;

/// Projections, at most.
pub const MOST: usize = 4;

/// The ops it stands for.
#[derive(Debug, Clone, PartialEq)]
pub struct NormLinears {
    /// Of whole rows.
    pub norm: RmsNorm,
    /// Of the normed rows.
    pub linears: Vec<Linear>,
}

impl Contract for NormLinears {
    fn reads(&self) -> Vec<Access> {
        let mut reads = self.norm.reads();
        reads.extend(self.linears.iter().flat_map(|l| matrix_reads(&l.weight)));
        reads
    }
    fn writes(&self) -> Vec<Access> {
        let mut writes = self.norm.writes();
        writes.extend(self.linears.iter().flat_map(Contract::writes));
        writes
    }
    fn cost(&self, c: &Counts) -> Cost {
        let normed = c.rows(self.norm.rows) * self.norm.out.row_bytes();
        let linear = |l: &Linear| {
            let cost = l.cost(c);
            Cost { read: cost.read - normed, ..cost }
        };
        self.linears.iter().map(linear).fold(self.norm.cost(c), |a, b| a + b)
    }
    fn tensors(&mut self) -> Vec<&mut Tensor> {
        let mut all = self.norm.tensors();
        all.extend(self.linears.iter_mut().flat_map(Contract::tensors));
        all
    }
    fn check(&self) {
        self.norm.check();
        assert_eq!(self.norm.heads, 1, "a projection reads whole rows");
        assert!((1..=MOST).contains(&self.linears.len()));
        for l in &self.linears {
            l.check();
            assert_eq!((l.x, l.rows), (Activations::Full(self.norm.out), self.norm.rows));
        }
    }
}
