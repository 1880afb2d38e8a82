//! Fused: `linear` and the residual `add`. Its activations may lack the factor of a norm over each head, which is then taken
//! from sums of squares that the op before has left: `x · rsqrt(Σ squares / dim + eps)`.

use crate::op::{Access, Contract, Cost, Counts, Rows, matrix_reads};
use crate::ops::add::Add;
use crate::ops::linear::{Activations, Linear};
use crate::tensor::{DType, Tensor};

pub(crate) mod cases;
pub(crate) mod reference;

/// Rows that lack the factor of their norm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeadScale {
    /// `[T, H·dim]` f32.
    pub x: Tensor,
    /// `[T, H·parts]` f32: sums of squares, to be added up for each head.
    pub squares: Tensor,
    /// Elements of a head.
    pub dim: usize,
    /// Added to the mean of squares.
    pub eps: f32,
}

impl HeadScale {
    /// Heads of a row.
    pub const fn heads(&self) -> usize {
        self.x.cols / self.dim
    }
}

/// The ops it stands for; `linear.out` is not written, nor is `linear.x` where there is a scale.
#[derive(Debug, Clone, PartialEq)]
pub struct LinearAdd {
    /// The projection.
    pub linear: Linear,
    /// The residual.
    pub add: Add,
    /// What its activations are made of.
    pub scale: Option<HeadScale>,
}

impl LinearAdd {
    /// The operand that the projection is added to.
    pub fn residual(&self) -> &Tensor {
        if self.add.a == self.linear.out { &self.add.b } else { &self.add.a }
    }

    /// What the kernel reads rows of.
    pub fn rows(&self) -> Vec<Tensor> {
        match (&self.scale, &self.linear.x) {
            (Some(scale), _) => vec![scale.x, scale.squares],
            (None, Activations::Full(x)) => vec![*x],
            (None, Activations::Quantized(_)) => unreachable!("`check` asks for f32"),
        }
    }
}

impl Contract for LinearAdd {
    fn reads(&self) -> Vec<Access> {
        let mut reads = matrix_reads(&self.linear.weight);
        reads.extend(self.rows().iter().map(Access::from));
        reads.push(self.residual().into());
        reads
    }
    fn writes(&self) -> Vec<Access> {
        self.add.writes()
    }
    fn cost(&self, c: &Counts) -> Cost {
        let rows: usize = self.rows().iter().map(Tensor::row_bytes).sum();
        Cost {
            read: self.linear.weight.expert_bytes() + c.tokens * (rows + self.add.out.row_bytes()),
            written: c.tokens * self.add.out.row_bytes(),
            flops: self.linear.cost(c).flops + self.add.cost(c).flops,
        }
    }
    fn tensors(&mut self) -> Vec<&mut Tensor> {
        let mut all = match &mut self.scale {
            Some(scale) => vec![&mut scale.x, &mut scale.squares],
            None => self.linear.x.tensors(),
        };
        // Not the projection: it is nowhere.
        let Add { a, b, out } = &mut self.add;
        all.extend([if *a == self.linear.out { b } else { a }, out]);
        all
    }
    fn check(&self) {
        self.linear.check();
        self.add.check();
        assert_eq!(self.linear.rows, Rows::Tokens);
        assert!(matches!(self.linear.x, Activations::Full(_)));
        assert!([self.add.a, self.add.b].contains(&self.linear.out) && self.add.a != self.add.b);
        if let Some(s) = &self.scale {
            assert_eq!((s.x.cols, s.x.dtype, s.squares.dtype), (self.linear.weight.cols, DType::F32, DType::F32));
            assert!(s.x.cols.is_multiple_of(s.dim) && s.squares.cols.is_multiple_of(s.heads()));
        }
    }
}
