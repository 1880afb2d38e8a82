//! Copies of a recurrent state at earlier lengths of a timeline, within a byte budget.

use lily_kernels::backend::{Backend, BufferId};

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

    /// The buffers of all kept states.
    #[cfg(test)]
    pub fn buffers(&self) -> impl Iterator<Item = BufferId> {
        self.kept.iter().map(|s| s.buffer)
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

    /// Copies a state (`bytes` at `from`) as the one at `len`, which is that of the timeline's end. Where the budget is
    /// spent, it takes the place of the snapshot whose loss costs the least re-computation: the one closest to its
    /// predecessor. A state for which there is no memory is not kept: all it would have saved is time.
    pub fn keep(
        &mut self,
        backend: &mut dyn Backend,
        len: usize,
        from: (BufferId, usize),
        bytes: usize,
        budget: usize,
    ) {
        if len == 0 || bytes > budget || self.state_at(len).is_some() {
            return;
        }
        assert!(self.kept.last().is_none_or(|s| s.len < len), "snapshots are of the past");
        let buffer = if (self.kept.len() + 1) * bytes > budget {
            self.kept.remove(self.cheapest()).buffer
        } else {
            match backend.allocate("a snapshot of the recurrent state", bytes) {
                Ok(buffer) => buffer,
                Err(_) => return,
            }
        };
        backend.copy(from, (buffer, 0), bytes);
        self.kept.push(Snapshot { len, buffer });
    }

    fn cheapest(&self) -> usize {
        let gap = |i: usize| self.kept[i].len - if i == 0 { 0 } else { self.kept[i - 1].len };
        (0..self.kept.len()).min_by_key(|&i| gap(i)).expect("a spent budget was spent on something")
    }
}
