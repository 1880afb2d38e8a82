//! Attention of one token of each sequence, cut along the cache: each span of positions gives, for each query head, the largest
//! score, the sum of `exp(score − largest)` and the weighted values; `attention_merge` puts them together. Many threadgroups so
//! share a long cache. Formula: `attention`.

use crate::inputs::KV_BLOCK;
use crate::op::{Access, Contract, Cost, Counts};
use crate::ops::attention::Attention;
use crate::tensor::{DType, Tensor};

pub(crate) mod cases;
pub(crate) mod reference;

/// How a cache is cut: into as many spans as there may be, of at least so many positions, or from some length on into whole
/// blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cut {
    /// Positions of a span, at least.
    pub least: usize,
    /// Spans, at most.
    pub most: usize,
    /// Length from which spans are whole blocks.
    pub blocks_from: usize,
}

impl Cut {
    /// Spans of any length.
    pub const PLAIN: Self = Self { least: 32, most: 64, blocks_from: usize::MAX >> 33 };
    /// Whole blocks from 32K on.
    pub const BLOCKS: Self = Self { blocks_from: 32_768, ..Self::PLAIN };
    /// Spans of whole blocks, at most.
    pub const MOST_BLOCKS: usize = 128;

    /// Spans that fit, of either kind.
    pub const fn capacity(self) -> usize {
        if self.most > Self::MOST_BLOCKS { self.most } else { Self::MOST_BLOCKS }
    }

    /// Positions of a span in a cache of this length.
    pub const fn span(self, length: usize) -> usize {
        if length < self.blocks_from {
            let even = length.div_ceil(self.most);
            if even > self.least { even } else { self.least }
        } else {
            length.div_ceil(KV_BLOCK).div_ceil(Self::MOST_BLOCKS) * KV_BLOCK
        }
    }

    /// Spans of each of several caches, the longest of this length: a shorter one may have more than it.
    pub fn spans_up_to(self, longest: usize) -> usize {
        let shorter = longest.min(self.blocks_from - 1).div_ceil(self.least).min(self.most);
        shorter.max(self.spans(longest))
    }

    /// Spans of a cache of this length.
    pub const fn spans(self, length: usize) -> usize {
        length.div_ceil(self.span(length))
    }
}

/// Operands.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionParts {
    /// What is computed; `out` is not written.
    pub attention: Attention,
    /// `[T, Hq·capacity·(head_dim + 2)]` f32: of each head and span the values, then the largest score, then the sum.
    pub parts: Tensor,
    /// How the cache is cut.
    pub cut: Cut,
}

impl AttentionParts {
    /// Elements of a part.
    pub const fn part_len(&self) -> usize {
        self.attention.layer.head_dim + 2
    }

    /// Spans that a step of these sizes has for each row, at most.
    pub fn row_spans(&self, c: &Counts) -> usize {
        if c.sequences == 1 { self.cut.spans(c.longest) } else { self.cut.spans_up_to(c.longest) }
    }

    /// Bytes that the parts of a step take up.
    pub fn part_bytes(&self, c: &Counts) -> usize {
        c.spans(self.cut) * self.attention.q_heads() * self.part_len() * DType::F32.bytes()
    }
}

impl Contract for AttentionParts {
    fn reads(&self) -> Vec<Access> {
        self.attention.reads()
    }
    fn writes(&self) -> Vec<Access> {
        vec![Access::from(&self.parts)]
    }
    fn cost(&self, c: &Counts) -> Cost {
        let whole = self.attention.cost(c);
        Cost { read: whole.read, written: self.part_bytes(c), flops: whole.flops }
    }
    fn tensors(&mut self) -> Vec<&mut Tensor> {
        vec![&mut self.attention.q, &mut self.parts]
    }
    fn check(&self) {
        self.attention.check();
        assert_eq!(self.parts.cols, self.attention.q_heads() * self.cut.capacity() * self.part_len());
        assert_eq!((self.parts.rows, self.parts.dtype), (self.attention.q.rows, DType::F32));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_cover_the_cache_and_are_never_too_many() {
        for cut in [Cut::PLAIN, Cut::BLOCKS] {
            for length in (1..3000).chain([32_767, 32_768, 33_000, 131_072, 262_144, 1_048_576]) {
                let (span, spans) = (cut.span(length), cut.spans(length));
                assert!(span * spans >= length && span * (spans - 1) < length, "{cut:?} {length}");
                assert!(spans <= cut.capacity(), "{cut:?} {length}: {spans}");
                assert!(length < cut.blocks_from || span.is_multiple_of(KV_BLOCK));
                let shorter = [1, length / 3 + 1, length].map(|l| cut.spans(l));
                assert!(shorter.iter().all(|spans| *spans <= cut.spans_up_to(length)), "{cut:?} {length}");
            }
        }
    }
}
