//! Flow 8: what a conversation keeps on the device. A session is one mutable timeline: tokens, their KV blocks, the
//! recurrent state after the last of them, and snapshots of that state at places where a later request may resume
//! (a recurrent state cannot be cut). Runs no model; `generate.rs` moves it on.

mod blocks;
mod snapshots;
mod store;

pub use blocks::OutOfBlocks;
pub(crate) use store::Store;

use blocks::BlockPool;
use lily_kernels::backend::{Backend, BufferId, DeviceError};
use lily_kernels::inputs::{KV_BLOCK, SequenceInputs};

use crate::model::memory::MemoryLayout;
use snapshots::Snapshots;

/// One timeline.
#[derive(Debug)]
pub struct Session {
    /// Tokens whose effect is in state and cache.
    tokens: Vec<u32>,
    /// Two halves; steps read one and write the other.
    state: BufferId,
    half: usize,
    blocks: Vec<u32>,
    snapshots: Snapshots,
    state_bytes: usize,
    /// Tokens of the last request's prompt; the answer lies behind them.
    prompt_len: usize,
    /// Engine clock of the last request, for choosing which session to give up.
    last_used: u64,
}

impl Session {
    /// An empty timeline.
    ///
    /// # Errors
    /// The device has no memory for the state.
    fn new(backend: &mut dyn Backend, memory: &MemoryLayout) -> Result<Self, DeviceError> {
        let state = backend.allocate("the recurrent state of a session", 2 * memory.state_bytes)?;
        Ok(Self {
            tokens: Vec::new(),
            state,
            half: 0,
            blocks: Vec::new(),
            snapshots: Snapshots::default(),
            state_bytes: memory.state_bytes,
            prompt_len: 0,
            last_used: 0,
        })
    }

    /// Gives everything back.
    fn release(self, backend: &mut dyn Backend, pool: &mut BlockPool) {
        pool.give(&self.blocks);
        backend.free(self.state);
        self.snapshots.release(backend);
    }

    /// Tokens computed so far.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Positions in the cache.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// KV blocks that it holds.
    fn num_blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Whether nothing was computed yet.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// How much of a prompt this timeline can skip: the largest resumable length ≤ the common prefix that leaves at
    /// least one token to run.
    fn reusable(&self, prompt: &[u32]) -> usize {
        let common = self.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let limit = common.min(prompt.len().saturating_sub(1));
        if self.len() <= limit { self.len() } else { self.snapshots.longest(limit).unwrap_or(0) }
    }

    /// How much of its last prompt this timeline loses if it goes back to `len`. An answer counts nothing: the next
    /// turn of its own conversation often leaves it too, as where a template drops the reasoning.
    fn prompt_lost(&self, len: usize) -> usize {
        self.prompt_len.min(self.len()).saturating_sub(len)
    }

    /// Goes back to a length that `reusable` named.
    fn rewind(&mut self, backend: &mut dyn Backend, pool: &mut BlockPool, len: usize) {
        if len < self.len() {
            match self.snapshots.state_at(len) {
                Some(snapshot) => {
                    backend.copy((snapshot, 0), (self.state, self.half * self.state_bytes), self.state_bytes);
                }
                None => {
                    assert_eq!(len, 0, "a timeline resumes at a snapshot or from nothing");
                    backend.clear(self.state, self.half * self.state_bytes, self.state_bytes);
                }
            }
            self.tokens.truncate(len);
            self.snapshots.truncate(backend, len);
        }
        self.give_spare(pool);
    }

    /// Gives back the room that `reserve` made and no step used.
    fn give_spare(&mut self, pool: &mut BlockPool) {
        let used = self.len().div_ceil(KV_BLOCK);
        pool.give(&self.blocks[used..]);
        self.blocks.truncate(used);
    }

    /// Keeps the state as it is now, if `budget` bytes for this session's snapshots and the device have room for it.
    pub(crate) fn snapshot(&mut self, backend: &mut dyn Backend, budget: usize) {
        let from = (self.state, self.half * self.state_bytes);
        self.snapshots.keep(backend, self.tokens.len(), from, self.state_bytes, budget);
    }

    /// Makes room in the cache for `more` positions.
    ///
    /// # Errors
    /// The pool is used up; nothing changed.
    fn reserve(&mut self, pool: &mut BlockPool, more: usize) -> Result<(), OutOfBlocks> {
        let need = (self.len() + more).div_ceil(KV_BLOCK);
        if need > self.blocks.len() {
            pool.take(need - self.blocks.len(), &mut self.blocks)?;
        }
        Ok(())
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
