//! All timelines of an engine: the running ones, and the places where later requests may go on. Both share one pool of
//! KV blocks; the running ones come first.

use std::collections::HashMap;

use lily_kernels::backend::{Backend, BufferId, DeviceError};
use lily_kernels::inputs::KV_BLOCK;

use super::Session;
use super::blocks::{BlockPool, OutOfBlocks};
use super::disk::{DiskTier, Record};
use super::tree::{NodeId, PrefixTree, Snapshot};
use crate::error::EngineError;
use crate::model::memory::MemoryLayout;

/// Most snapshots, however small they are: they are looked through one by one.
const MAX_SNAPSHOTS: usize = 1024;
const SNAPSHOT: &str = "a snapshot of the recurrent state";

/// How much a store may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheSize {
    /// KV blocks of 256 positions.
    pub blocks: u32,
    /// Bytes of snapshots.
    pub snapshot_bytes: usize,
}

/// How much it holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    /// Snapshots.
    pub snapshots: usize,
    /// Their bytes.
    pub snapshot_bytes: usize,
    /// Most bytes that they may take.
    pub snapshot_budget_bytes: usize,
    /// Blocks in use.
    pub blocks_used: usize,
    /// All of them.
    pub blocks: usize,
    /// Snapshots on the disk, and their bytes.
    pub on_disk: (usize, u64),
}

/// Sessions, snapshots, and the pool of KV blocks.
#[derive(Debug)]
pub struct Store {
    pool: BlockPool,
    tree: PrefixTree,
    /// Of the whole pool.
    kv: BufferId,
    block_bytes: usize,
    state_bytes: usize,
    snapshot_bytes: usize,
    /// What was given up, or was there before the program began.
    disk: Option<DiskTier>,
    /// States of sessions that have ended, for those to come.
    spare: Vec<BufferId>,
    /// Counts requests.
    clock: u64,
}

impl Store {
    /// A store over the blocks that lie in `kv`.
    pub fn new(size: CacheSize, kv: BufferId, memory: &MemoryLayout) -> Self {
        Self {
            pool: BlockPool::new(size.blocks),
            tree: PrefixTree::new(),
            kv,
            block_bytes: memory.block_bytes,
            state_bytes: memory.state_bytes,
            snapshot_bytes: size.snapshot_bytes,
            disk: None,
            spare: Vec::new(),
            clock: 0,
        }
    }

    /// Snapshots that are given up go there, and are found there.
    pub fn keep_on_disk(&mut self, disk: DiskTier) {
        self.disk = Some(disk);
    }

    /// Writes the newest snapshot that is not on the disk; `false` if there is none.
    pub fn save_one(&mut self, backend: &mut dyn Backend) -> bool {
        let newest = self.unsaved().pop();
        if let Some(newest) = newest {
            self.save(backend, newest, false);
        }
        newest.is_some()
    }

    /// Writes all snapshots that are not on the disk, the newest last, and waits for that.
    pub fn close(&mut self, backend: &mut dyn Backend) {
        for id in self.unsaved() {
            self.save(backend, id, true);
        }
        self.disk = None;
    }

    /// Snapshots that are worth writing to the disk and not there, the newest last.
    fn unsaved(&self) -> Vec<NodeId> {
        let Some(disk) = &self.disk else { return Vec::new() };
        let mut all: Vec<(u64, NodeId)> = self.tree.iter().map(|(id, snapshot)| (snapshot.last_used, id)).collect();
        all.retain(|(_, id)| disk.wants(&self.tree.tokens(*id)));
        all.sort_by_key(|(last_used, id)| (*last_used, self.tree.len(*id)));
        all.into_iter().map(|(_, id)| id).collect()
    }

    /// What it holds now.
    pub fn held(&self) -> Held {
        let snapshots = self.tree.snapshots();
        Held {
            snapshots,
            snapshot_bytes: snapshots * self.state_bytes,
            snapshot_budget_bytes: self.snapshot_bytes,
            blocks_used: self.pool.len() - self.pool.available(),
            blocks: self.pool.len(),
            on_disk: self.disk.as_ref().map_or((0, 0), DiskTier::held),
        }
    }

    /// A timeline that has computed nothing.
    ///
    /// # Errors
    /// The device has no memory, not even that of the snapshots.
    pub fn fresh(&mut self, backend: &mut dyn Backend) -> Result<Session, DeviceError> {
        self.clock += 1;
        let state = loop {
            match self.spare.pop().map_or_else(|| self.allocate(backend), Ok) {
                Ok(state) => break state,
                Err(error) => match self.tree.cheapest() {
                    Some(id) => self.drop_snapshot(backend, id),
                    None => return Err(error),
                },
            }
        };
        backend.clear(state, 0, self.state_bytes);
        Ok(Session { tokens: Vec::new(), state, half: 0, blocks: Vec::new() })
    }

    fn allocate(&self, backend: &mut dyn Backend) -> Result<BufferId, DeviceError> {
        backend.allocate("the recurrent state of a session", 2 * self.state_bytes)
    }

    /// A timeline that has computed as much of a prompt as some snapshot has, and leaves at least one token to run.
    ///
    /// # Errors
    /// The device has no memory for a new session, or running ones hold all blocks.
    pub fn begin(&mut self, backend: &mut dyn Backend, prompt: &[u32]) -> Result<Session, EngineError> {
        let mut session = self.fresh(backend)?;
        self.restore(backend, prompt);
        match self.catch_up(backend, &mut session, prompt) {
            Ok(()) => Ok(session),
            Err(full) => {
                self.discard(session);
                Err(full.into())
            }
        }
    }

    /// Moves a timeline of a prompt to the snapshot that is farther on, if there is one by now.
    ///
    /// # Errors
    /// Running sessions hold all blocks; the timeline is as it was.
    pub fn catch_up(
        &mut self,
        backend: &mut dyn Backend,
        session: &mut Session,
        prompt: &[u32],
    ) -> Result<(), OutOfBlocks> {
        let found = self.tree.longest(prompt, prompt.len().saturating_sub(1));
        let Some(id) = found.filter(|id| self.tree.len(*id) > session.len()) else { return Ok(()) };
        self.tree.touch(id, self.clock);
        let len = self.tree.len(id);
        let Some(snapshot) = self.tree.snapshot(id) else { return Ok(()) };
        let (state, mut blocks) = (snapshot.state, snapshot.blocks.clone());
        self.pool.share(&blocks);
        // Into the half that is not current, before anything is given up for room.
        backend.copy((state, 0), (session.state, (1 - session.half) * self.state_bytes), self.state_bytes);
        if let Err(full) = self.own_tail(backend, len, &mut blocks) {
            self.pool.give(&blocks);
            return Err(full);
        }
        session.half = 1 - session.half;
        self.pool.give(&session.blocks);
        session.blocks = blocks;
        session.tokens.clear();
        session.tokens.extend_from_slice(&prompt[..len]);
        Ok(())
    }

    /// Brings a snapshot back from the disk, if one there is farther on than those in memory.
    fn restore(&mut self, backend: &mut dyn Backend, prompt: &[u32]) {
        let limit = prompt.len().saturating_sub(1);
        let here = self.tree.longest(prompt, limit).map_or(0, |id| self.tree.len(id));
        let Some(disk) = &self.disk else { return };
        let Some(record) = disk.longest(prompt, here, limit).and_then(|len| disk.load(&prompt[..len])) else { return };
        let count = record.tokens.len().div_ceil(KV_BLOCK);
        if record.state.len() != self.state_bytes || record.kv.len() != count * self.block_bytes {
            tracing::warn!(tokens = record.tokens.len(), "a snapshot is not used: its sizes are another model's");
            return;
        }
        let mut blocks = Vec::new();
        if self.take_blocks(backend, count, &mut blocks).is_err() {
            return;
        }
        for (block, bytes) in blocks.iter().zip(record.kv.chunks_exact(self.block_bytes.max(1))) {
            backend.write(self.kv, *block as usize * self.block_bytes, bytes);
        }
        self.keep(backend, &record.tokens, blocks, |backend, state| backend.write(state, 0, &record.state));
    }

    /// Hands a snapshot to the disk, if there is one and it lacks it.
    fn save(&self, backend: &mut dyn Backend, id: NodeId, must: bool) {
        let (Some(disk), Some(snapshot)) = (&self.disk, self.tree.snapshot(id)) else { return };
        let tokens = self.tree.tokens(id);
        if !disk.wants(&tokens) {
            return;
        }
        let (mut state, mut kv) = (vec![0; self.state_bytes], vec![0; snapshot.blocks.len() * self.block_bytes]);
        backend.read(snapshot.state, 0, &mut state);
        for (block, bytes) in snapshot.blocks.iter().zip(kv.chunks_exact_mut(self.block_bytes.max(1))) {
            backend.read(self.kv, *block as usize * self.block_bytes, bytes);
        }
        disk.save(Record { tokens, state, kv }, must);
    }

    /// Makes the last block of `len` positions one that nobody else holds, if there is room in it to write to.
    fn own_tail(&mut self, backend: &mut dyn Backend, len: usize, blocks: &mut [u32]) -> Result<(), OutOfBlocks> {
        let Some(tail) = blocks.last_mut().filter(|_| !len.is_multiple_of(KV_BLOCK)) else { return Ok(()) };
        let mut own = Vec::new();
        while self.pool.holders(*tail) > 1 {
            match self.pool.take(1, &mut own) {
                Ok(()) => {
                    let at = |block: u32| (self.kv, block as usize * self.block_bytes);
                    backend.copy(at(*tail), at(own[0]), self.block_bytes);
                    self.pool.give(&[*tail]);
                    *tail = own[0];
                    return Ok(());
                }
                Err(full) => match self.tree.oldest_leaf() {
                    Some(id) => self.drop_snapshot(backend, id),
                    None => return Err(full),
                },
            }
        }
        Ok(())
    }

    /// Keeps what a timeline has computed, so that a later request can go on from here. A state for which there is no
    /// memory is not kept: all it would have saved is time.
    pub fn snapshot(&mut self, backend: &mut dyn Backend, session: &Session) {
        if session.is_empty() || self.tree.contains(&session.tokens) {
            return;
        }
        let blocks = session.blocks[..session.len().div_ceil(KV_BLOCK)].to_vec();
        self.pool.share(&blocks);
        let (bytes, from) = (self.state_bytes, (session.state, session.half * self.state_bytes));
        self.keep(backend, &session.tokens, blocks, |backend, state| backend.copy(from, (state, 0), bytes));
    }

    /// Puts a snapshot into the tree, its share of the blocks with it, and its state by `fill`; gives others up for it.
    fn keep(
        &mut self,
        backend: &mut dyn Backend,
        tokens: &[u32],
        blocks: Vec<u32>,
        fill: impl FnOnce(&mut dyn Backend, BufferId),
    ) {
        let is_full = |this: &Self| {
            let count = this.tree.snapshots();
            count >= MAX_SNAPSHOTS || (count + 1) * this.state_bytes > this.snapshot_bytes
        };
        while let Some(id) = self.tree.cheapest().filter(|_| is_full(self)) {
            self.drop_snapshot(backend, id);
        }
        let state = if is_full(self) { None } else { backend.allocate(SNAPSHOT, self.state_bytes).ok() };
        let Some(state) = state else {
            self.pool.give(&blocks);
            return;
        };
        fill(backend, state);
        let old = self.tree.insert(tokens, Snapshot { state, blocks, last_used: self.clock });
        assert!(old.is_none(), "a prefix is kept once");
    }

    /// Room for `more` positions in a running session; snapshots are given up for it, the oldest first, if that makes
    /// enough.
    ///
    /// # Errors
    /// It does not; nothing changed.
    pub fn reserve(
        &mut self,
        backend: &mut dyn Backend,
        session: &mut Session,
        more: usize,
    ) -> Result<(), OutOfBlocks> {
        let need = (session.len() + more).div_ceil(KV_BLOCK).saturating_sub(session.blocks.len());
        self.take_blocks(backend, need, &mut session.blocks)
    }

    fn take_blocks(
        &mut self,
        backend: &mut dyn Backend,
        count: usize,
        table: &mut Vec<u32>,
    ) -> Result<(), OutOfBlocks> {
        if count > self.pool.available() && count > self.pool.available() + self.idle_blocks() {
            return Err(OutOfBlocks { wanted: count, free: self.pool.available() });
        }
        loop {
            match self.pool.take(count, table) {
                Ok(()) => return Ok(()),
                Err(full) => match self.tree.oldest_leaf() {
                    Some(id) => self.drop_snapshot(backend, id),
                    None => return Err(full),
                },
            }
        }
    }

    /// Room for `more` positions from free blocks only; `false` if there are too few.
    pub fn reserve_free(&mut self, session: &mut Session, more: usize) -> bool {
        let need = (session.len() + more).div_ceil(KV_BLOCK).saturating_sub(session.blocks.len());
        self.pool.take(need, &mut session.blocks).is_ok()
    }

    /// Ends a timeline; what it computed can be resumed.
    pub fn end(&mut self, backend: &mut dyn Backend, session: Session) {
        self.clock += 1;
        self.snapshot(backend, &session);
        if let Some(id) = self.tree.longest(&session.tokens, session.len()) {
            self.tree.touch(id, self.clock);
        }
        self.discard(session);
    }

    /// Ends a timeline that nobody may resume.
    pub fn discard(&mut self, session: Session) {
        self.pool.give(&session.blocks);
        self.spare.push(session.state);
    }

    /// Blocks that only snapshots hold.
    fn idle_blocks(&self) -> usize {
        let mut held = HashMap::new();
        for block in self.tree.iter().flat_map(|(_, snapshot)| &snapshot.blocks) {
            *held.entry(*block).or_insert(0) += 1;
        }
        held.into_iter().filter(|(block, count)| self.pool.holders(*block) == *count).count()
    }

    fn drop_snapshot(&mut self, backend: &mut dyn Backend, id: NodeId) {
        self.save(backend, id, false);
        if let Some(snapshot) = self.tree.remove(id) {
            self.pool.give(&snapshot.blocks);
            backend.free(snapshot.state);
        }
    }
}

#[cfg(test)]
mod tests;
