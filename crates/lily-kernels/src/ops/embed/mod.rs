//! Row of the embedding table of each token: `out[t] = dequantize(table[tokens[t]])`, `[T, D]` f32.

use crate::op::{Access, Contract, Cost, Counts, matrix_reads};
use crate::tensor::{DType, Matrix, Space, Tensor};

pub(crate) mod cases;
pub(crate) mod reference;
pub(crate) mod simd;

/// Operands.
#[derive(Debug, Clone, PartialEq)]
pub struct Embed {
    /// Token ids `[T, 1]` u32, in `Space::Tokens`.
    pub tokens: Tensor,
    /// `[V, D]`.
    pub table: Matrix,
    /// `[T, D]` f32.
    pub out: Tensor,
}

impl Contract for Embed {
    fn reads(&self) -> Vec<Access> {
        let mut reads = matrix_reads(&self.table);
        reads.push(Access::from(&self.tokens));
        reads
    }
    fn writes(&self) -> Vec<Access> {
        vec![Access::from(&self.out)]
    }
    fn cost(&self, c: &Counts) -> Cost {
        Cost {
            read: c.distinct_tokens * self.table.row_bytes() + c.tokens * self.tokens.row_bytes(),
            written: c.tokens * self.out.row_bytes(),
            flops: 2 * c.tokens * self.out.cols,
        }
    }
    fn tensors(&mut self) -> Vec<&mut Tensor> {
        vec![&mut self.tokens, &mut self.out]
    }
    fn check(&self) {
        assert_eq!(self.tokens.space, Space::Tokens);
        assert_eq!((self.tokens.dtype, self.out.dtype), (DType::U32, DType::F32));
        assert_eq!(self.table.experts(), 1);
        assert_eq!((self.tokens.rows, self.table.cols), (self.out.rows, self.out.cols));
    }
}
