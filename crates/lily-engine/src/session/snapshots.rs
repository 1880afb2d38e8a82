//! Copies of a recurrent state at earlier lengths of a timeline, within a byte budget.

use lily_kernels::backend::{Backend, BufferId, DeviceError};

/// One kept state.
#[derive(Debug)]
struct Snapshot {
    /// Tokens of the timeline at that moment.
    len: usize,
    buffer: BufferId,
}

/// Kept states, by ascending length.
#[derive(Debug, Default)]
pub struct Snapshots {
    kept: Vec<Snapshot>,
}

impl Snapshots {
    /// The longest kept length ≤ `limit`.
    pub fn longest(&self, limit: usize) -> Option<usize> {
        self.kept.iter().rev().map(|s| s.len).find(|&len| len <= limit)
    }

    /// The state kept at a length.
    pub fn state_at(&self, len: usize) -> Option<BufferId> {
        self.kept.iter().find(|s| s.len == len).map(|s| s.buffer)
    }

    /// Number of kept states.
    pub fn count(&self) -> usize {
        self.kept.len()
    }

    /// Drops what lies after `len`.
    pub fn truncate(&mut self, backend: &mut dyn Backend, len: usize) {
        let keep = self.kept.partition_point(|s| s.len <= len);
        self.kept.drain(keep..).for_each(|s| backend.free(s.buffer));
    }

    /// Drops everything.
    pub fn release(self, backend: &mut dyn Backend) {
        self.kept.into_iter().for_each(|s| backend.free(s.buffer));
    }

    /// Copies a state (`bytes` at `from`) as the one at `len`. Over budget, the snapshot whose loss costs the least
    /// re-computation goes: the one closest to its predecessor.
    ///
    /// # Errors
    /// The device has no memory for it.
    pub fn keep(
        &mut self,
        backend: &mut dyn Backend,
        len: usize,
        from: (BufferId, usize),
        bytes: usize,
        budget: usize,
    ) -> Result<(), DeviceError> {
        if len == 0 || bytes > budget || self.state_at(len).is_some() {
            return Ok(());
        }
        let buffer = backend.allocate("a snapshot of the recurrent state", bytes)?;
        backend.copy(from, (buffer, 0), bytes);
        let at = self.kept.partition_point(|s| s.len < len);
        self.kept.insert(at, Snapshot { len, buffer });
        while self.kept.len() * bytes > budget {
            let gap = |i: usize| self.kept[i].len - if i == 0 { 0 } else { self.kept[i - 1].len };
            // The newest stays: the next turn most likely resumes there.
            let candidates = (0..self.kept.len()).filter(|&i| self.kept[i].len != len);
            let Some(cheapest) = candidates.min_by_key(|&i| gap(i)) else { break };
            backend.free(self.kept.remove(cheapest).buffer);
        }
        Ok(())
    }
}
