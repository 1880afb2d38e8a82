//! The next token of each output row, written into the next step's token slot. First each of the row's `LogitEdit`s
//! changes its logit, in a copy; then ids that the row's mask lacks are out. Greedy: arg max, ties to the lowest id. Else, in this order, over the ids by descending
//! logit (ties to the lowest id): divide by the temperature; keep the first top-k; of those keep the smallest prefix
//! whose share of their probability reaches top-p; drop what is less probable than min-p times the first. Then one draw
//! of a counter-based generator, so that a token depends on seed and position only: in the order of ids, the first at
//! which the running share of what is left exceeds `uniform(seed, counter)`.
//! Ids from `vocab_limit` on and −∞ are never chosen. A row that has a NaN or +∞ among the ids before, or nothing that
//! may be chosen, is no distribution: it gives `NO_TOKEN`. So does a row whose mask has none of what may be chosen.

use crate::op::{Access, Contract, Cost, Counts};
use crate::tensor::{DType, Space, Tensor};

pub(crate) mod cases;
pub(crate) mod reference;
pub(crate) mod simd;

/// Stands for the token of a row whose logits are not numbers. No vocabulary has it, and no step may start from it.
pub const NO_TOKEN: u32 = u32::MAX;

/// Operands.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// `[R, V]` f32.
    pub logits: Tensor,
    /// `[R, 1]` u32 in `Space::NextTokens`.
    pub tokens: Tensor,
}

impl Contract for Sample {
    fn reads(&self) -> Vec<Access> {
        vec![Access::from(&self.logits)]
    }
    fn writes(&self) -> Vec<Access> {
        vec![Access::from(&self.tokens)]
    }
    fn cost(&self, c: &Counts) -> Cost {
        Cost {
            read: c.outputs * self.logits.row_bytes(),
            written: c.outputs * self.tokens.row_bytes(),
            flops: c.outputs * self.logits.cols,
        }
    }
    fn tensors(&mut self) -> Vec<&mut Tensor> {
        vec![&mut self.logits, &mut self.tokens]
    }
    fn check(&self) {
        assert_eq!((self.logits.dtype, self.tokens.dtype), (DType::F32, DType::U32));
        assert_eq!(self.tokens.space, Space::NextTokens);
        assert_eq!((self.tokens.rows, self.tokens.cols), (self.logits.rows, 1));
    }
}
/// Uniform number in [0, 1) of a seed and a counter: the top 24 bits of SplitMix64's finalizer over both, mixed
/// twice so that neighbouring seeds and counters are unrelated.
pub fn uniform(seed: u64, counter: u64) -> f32 {
    const fn mix(mut z: u64) -> u64 {
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    let stream = mix(seed.wrapping_add(0x9E37_79B9_7F4A_7C15));
    let bits = mix(stream ^ mix(counter.wrapping_add(0x9E37_79B9_7F4A_7C15)));
    (bits >> 40) as f32 / (1u64 << 24) as f32
}
