//! All timelines of an engine and the blocks that they share.

use lily_kernels::backend::{Backend, DeviceError};

use super::{BlockPool, OutOfBlocks, Session};
use crate::model::memory::MemoryLayout;

/// Tokens of a prompt that are soon computed again.
const SMALL_LOSS: usize = 256;

/// Idle sessions, and the pool of KV blocks.
#[derive(Debug)]
pub struct Store {
    pool: BlockPool,
    idle: Vec<Session>,
    max_sessions: usize,
    clock: u64,
}

impl Store {
    /// A store of at most `max_sessions` timelines over `blocks` KV blocks.
    pub fn new(blocks: u32, max_sessions: usize) -> Self {
        Self { pool: BlockPool::new(blocks), idle: Vec::new(), max_sessions, clock: 0 }
    }

    /// Takes out the idle session that can skip most of a prompt, already rewound to that point, or a fresh one.
    /// A session that would lose more of its own prompt than it saves here is left alone: its conversation may go on,
    /// and a long one must not be the price of a short one with the same system message.
    ///
    /// # Errors
    /// The device has no memory for a new session, not even that of the idle ones.
    pub fn take(
        &mut self,
        backend: &mut dyn Backend,
        memory: &MemoryLayout,
        prompt: &[u32],
    ) -> Result<Session, DeviceError> {
        self.clock += 1;
        let offers = self.idle.iter().enumerate().map(|(i, s)| (s.reusable(prompt), i));
        let best = offers.filter(|&(len, i)| len > 0 && self.idle[i].prompt_lost(len) <= len.max(SMALL_LOSS)).max();
        if let Some((len, i)) = best {
            let mut session = self.idle.remove(i);
            session.rewind(backend, &mut self.pool, len);
            session.prompt_len = prompt.len();
            return Ok(session);
        }
        if self.idle.len() >= self.max_sessions {
            self.evict(backend);
        }
        loop {
            match Session::new(backend, memory) {
                Err(_) if !self.idle.is_empty() => self.evict(backend),
                result => return result.map(|session| Session { prompt_len: prompt.len(), ..session }),
            }
        }
    }

    /// Puts a session back.
    pub fn put(&mut self, mut session: Session) {
        session.give_spare(&mut self.pool);
        session.last_used = self.clock;
        self.idle.push(session);
    }

    /// Gives a session up.
    pub fn discard(&mut self, backend: &mut dyn Backend, session: Session) {
        session.release(backend, &mut self.pool);
    }

    /// Room for `more` positions in a session that was taken out; idle sessions are given up for it, the least
    /// recently used first, if that makes enough.
    ///
    /// # Errors
    /// It does not; nothing changed.
    pub fn reserve(
        &mut self,
        backend: &mut dyn Backend,
        session: &mut Session,
        more: usize,
    ) -> Result<(), OutOfBlocks> {
        loop {
            match session.reserve(&mut self.pool, more) {
                Err(full) if full.wanted <= full.free + self.idle_blocks() => self.evict(backend),
                result => return result,
            }
        }
    }

    /// Room for `more` positions from free blocks only; `false` if there are too few.
    pub fn reserve_free(&mut self, session: &mut Session, more: usize) -> bool {
        session.reserve(&mut self.pool, more).is_ok()
    }

    fn idle_blocks(&self) -> usize {
        self.idle.iter().map(Session::num_blocks).sum()
    }

    fn evict(&mut self, backend: &mut dyn Backend) {
        let oldest = self.idle.iter().enumerate().min_by_key(|(_, s)| s.last_used).map(|(i, _)| i);
        if let Some(i) = oldest {
            let session = self.idle.remove(i);
            session.release(backend, &mut self.pool);
        }
    }
}

#[cfg(test)]
mod tests;
