//! Flow 8: what conversations keep on the device. A session is one running timeline: tokens, their KV blocks, and the
//! recurrent state after the last of them. A recurrent state cannot be cut, so copies of it are kept where a later
//! request may go on (`tree`), with a share in the blocks that belong to it. Runs no model; `batch.rs` moves it on.

mod blocks;
mod disk; // snapshots that survive a restart
mod store;
mod tree;

pub use blocks::OutOfBlocks;
pub(crate) use disk::DiskTier;
pub use disk::{DiskOptions, Fingerprint};
pub use store::Held;
pub(crate) use store::{CacheSize, Store};

use lily_kernels::backend::BufferId;
use lily_kernels::inputs::{KV_BLOCK, SequenceInputs};

/// One timeline.
#[derive(Debug)]
pub struct Session {
    /// Tokens whose effect is in state and cache.
    tokens: Vec<u32>,
    /// Two halves; steps read one and write the other.
    state: BufferId,
    half: usize,
    /// KV block of each 256 positions. Those that end at or before `len` when it began may have other holders too; it
    /// writes only behind its tokens, into blocks that nobody else writes.
    blocks: Vec<u32>,
}

impl Session {
    /// Tokens computed so far.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Positions in the cache.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether nothing was computed yet.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Describes this timeline's part of a step of `rows` rows from `first_row`, reusing `inputs`' memory.
    pub(crate) fn fill_inputs(&self, first_row: usize, rows: usize, inputs: &mut SequenceInputs) {
        inputs.first_row = first_row;
        inputs.num_rows = rows;
        inputs.start = self.len();
        inputs.state = self.state;
        inputs.state_half = self.half;
        inputs.block_table.clear();
        inputs.block_table.reserve(self.blocks.capacity());
        inputs.block_table.extend_from_slice(&self.blocks);
    }

    /// Records that a step computed these tokens: the half that it wrote becomes current.
    pub(crate) fn advance(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
        self.half = 1 - self.half;
    }

    /// Reserves host memory, so that steps up to `len` positions allocate nothing.
    pub fn reserve_tokens(&mut self, len: usize) {
        self.tokens.reserve(len.saturating_sub(self.tokens.len()));
        self.blocks.reserve(len.div_ceil(KV_BLOCK).saturating_sub(self.blocks.len()));
    }
}
