//! Everything of a step that changes from step to step: token ids, positions, lengths, block tables, sampling.
//! Filled by the engine into preallocated vectors; nothing here is baked into a plan.

use crate::op::{Counts, Rows};
use crate::tensor::BufferId;

/// Positions in one KV block.
pub const KV_BLOCK: usize = 256;

/// One sequence of a step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SequenceInputs {
    /// Its first row in the step.
    pub first_row: usize,
    /// Its rows in the step: a prefill chunk's tokens, or 1.
    pub num_rows: usize,
    /// Positions already in its cache; its first row has this position.
    pub start: usize,
    /// Its recurrent state: two halves in one buffer.
    pub state: BufferId,
    /// Which half (0 or 1) this step reads; it writes the other.
    pub state_half: usize,
    /// KV block of each 256 positions, enough for `start + num_rows`.
    pub block_table: Vec<u32>,
}

impl SequenceInputs {
    /// KV blocks that its rows are written to; none for a plan without a cache, which needs no table.
    pub(crate) fn written_blocks(&self) -> &[u32] {
        if self.block_table.is_empty() {
            return &[];
        }
        &self.block_table[self.start / KV_BLOCK..(self.start + self.num_rows).div_ceil(KV_BLOCK)]
    }
}

/// How one output row's token is chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplingInputs {
    /// 0 is arg max.
    pub temperature: f32,
    /// 0 keeps all.
    pub top_k: u32,
    /// In (0, 1].
    pub top_p: f32,
    /// In [0, 1].
    pub min_p: f32,
    /// Seed of the counter-based generator.
    pub seed: u64,
    /// Position of the token being drawn: the generator's counter.
    pub counter: u64,
    /// Ids from here on are padding of the vocabulary and are never chosen.
    pub vocab_limit: u32,
    /// Which of the step's masks says what may be chosen; without one, all may.
    pub mask: Option<u32>,
}

/// A change to one logit of one output row, made before the row's token is chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogitEdit {
    /// Output row.
    pub row: u32,
    /// Token id.
    pub id: u32,
    /// Added first.
    pub bias: f32,
    /// Then a positive logit is divided by it, any other multiplied; above 0.
    pub repetition: f32,
    /// Subtracted last.
    pub penalty: f32,
}

impl LogitEdit {
    /// The logit as it is after the edit.
    pub fn apply(&self, logit: f32) -> f32 {
        let logit = logit + self.bias;
        let logit = if logit > 0.0 { logit / self.repetition } else { logit * self.repetition };
        logit - self.penalty
    }
}

/// Inputs of one step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepInputs {
    /// Token ids, one per row; ignored where `tokens_on_device`.
    pub tokens: Vec<u32>,
    /// Take the ids that the previous step's sampling left in the token slots.
    pub tokens_on_device: bool,
    /// Which of the two token slots this step reads; sampling writes the other.
    pub token_slot: usize,
    /// The sequences, rows ascending.
    pub sequences: Vec<SequenceInputs>,
    /// Rows whose logits are wanted, ascending.
    pub outputs: Vec<u32>,
    /// One per output row, for plans that sample.
    pub sampling: Vec<SamplingInputs>,
    /// For plans that sample: rows ascending, an id at most once in a row.
    pub edits: Vec<LogitEdit>,
    /// For plans that sample: masks of `mask_words(V)` words, one after the other. Bit `id % 32` of word `id / 32` says
    /// that an id may be chosen. Several rows may name one mask.
    pub masks: Vec<u32>,
}

/// Words of a mask over so many logits.
pub const fn mask_words(vocab: usize) -> usize {
    vocab.div_ceil(32)
}

impl StepInputs {
    /// True rows of a per-row op.
    pub fn rows(&self, rows: Rows) -> usize {
        match rows {
            Rows::Tokens => self.num_tokens(),
            Rows::Outputs => self.outputs.len(),
        }
    }

    /// Tokens in this step.
    pub fn num_tokens(&self) -> usize {
        self.sequences.iter().map(|s| s.num_rows).sum()
    }

    /// The edits of an output row.
    pub fn edits(&self, row: usize) -> &[LogitEdit] {
        &self.edits[self.edits_range(row)]
    }

    /// The mask of an output row of so many logits.
    pub fn mask(&self, row: usize, vocab: usize) -> Option<&[u32]> {
        let words = mask_words(vocab);
        self.sampling[row].mask.map(|mask| &self.masks[mask as usize * words..][..words])
    }

    /// Where in `edits` they are.
    pub(crate) fn edits_range(&self, row: usize) -> std::ops::Range<usize> {
        let first = self.edits.partition_point(|edit| (edit.row as usize) < row);
        let len = self.edits[first..].partition_point(|edit| edit.row as usize == row);
        first..first + len
    }

    /// The sequence of a row and the row's position in it.
    pub fn locate(&self, row: usize) -> (&SequenceInputs, usize) {
        let s = self
            .sequences
            .iter()
            .find(|s| (s.first_row..s.first_row + s.num_rows).contains(&row))
            .expect("every row belongs to a sequence");
        (s, s.start + row - s.first_row)
    }

    /// Lengths of the caches after the step.
    pub fn lengths(&self) -> impl Iterator<Item = usize> {
        self.sequences.iter().map(|s| s.start + s.num_rows)
    }

    /// Sizes from which costs follow. `experts_hit` is only known once a layer has routed.
    pub fn counts(&self, experts_hit: usize) -> Counts {
        let mut distinct: Vec<u32> = self.tokens.clone();
        distinct.sort_unstable();
        distinct.dedup();
        Counts {
            tokens: self.num_tokens(),
            outputs: self.outputs.len(),
            sequences: self.sequences.len(),
            kv_positions: self.lengths().sum(),
            attended: self.sequences.iter().map(|s| (0..s.num_rows).map(|i| s.start + i + 1).sum::<usize>()).sum(),
            experts_hit,
            distinct_tokens: distinct.len(),
            longest: self.lengths().max().unwrap_or(0),
            cut_spans: 0,
        }
    }

    /// Asserts that what a sequence writes is its own: dispatches write it side by side.
    pub(crate) fn check_exclusive(&self) {
        let halves = self.sequences.iter().all(|s| s.state_half < 2);
        assert!(self.token_slot < 2 && halves, "slots and halves are 0 or 1");
        let states = self.sequences.iter().map(|s| s.state.0);
        assert!(all_differ(states), "two sequences share a state");
        let blocks = self.sequences.iter().flat_map(SequenceInputs::written_blocks).copied();
        assert!(all_differ(blocks), "two parts of a step write one KV block");
    }
}

/// By pairs: there are few, and a step allocates nothing.
fn all_differ(ids: impl Iterator<Item = u32> + Clone) -> bool {
    ids.clone().enumerate().all(|(i, id)| ids.clone().take(i).all(|earlier| earlier != id))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sequences of one row at these (state, half, start, blocks).
    fn checked(sequences: &[(u32, usize, usize, &[u32])]) -> bool {
        let sequence = |(first_row, s): (usize, &(u32, usize, usize, &[u32]))| SequenceInputs {
            first_row,
            num_rows: 1,
            start: s.2,
            state: BufferId(s.0),
            state_half: s.1,
            block_table: s.3.to_vec(),
        };
        let sequences = sequences.iter().enumerate().map(sequence).collect();
        let inputs = StepInputs { sequences, ..StepInputs::default() };
        std::panic::catch_unwind(|| inputs.check_exclusive()).is_ok()
    }

    #[test]
    fn sequences_that_would_write_the_same_bytes_are_refused() {
        assert!(checked(&[(1, 0, 0, &[]), (2, 1, 0, &[])]));
        assert!(checked(&[(1, 0, 300, &[7, 8]), (2, 1, 300, &[7, 9])]), "a block that both only read");
        assert!(!checked(&[(1, 0, 300, &[7, 8]), (2, 1, 300, &[7, 8])]), "a block that both write");
        assert!(!checked(&[(1, 0, 0, &[3]), (1, 1, 0, &[4])]), "one state");
        assert!(!checked(&[(1, 2, 0, &[3])]), "no such half");
        assert!(!checked(&[(1, 0, 256, &[3])]), "no such block");
    }
}
