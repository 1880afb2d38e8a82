//! KV blocks of 256 positions, taken from one pool.

/// The pool is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the KV cache is full: {wanted} more blocks of 256 positions are needed, {free} are free; raise --context")]
pub struct OutOfBlocks {
    /// Blocks asked for.
    pub wanted: usize,
    /// Blocks left.
    pub free: usize,
}

/// Which blocks of the device's KV buffer are free.
#[derive(Debug)]
pub struct BlockPool {
    free: Vec<u32>,
}

impl BlockPool {
    /// A pool of `blocks` blocks.
    pub fn new(blocks: u32) -> Self {
        // Popped from the end: low numbers first keeps touched memory compact.
        Self { free: (0..blocks).rev().collect() }
    }

    /// Free blocks.
    pub fn available(&self) -> usize {
        self.free.len()
    }

    /// Moves `count` blocks to `table`.
    ///
    /// # Errors
    /// Too few are free; nothing changed.
    pub fn take(&mut self, count: usize, table: &mut Vec<u32>) -> Result<(), OutOfBlocks> {
        let Some(rest) = self.available().checked_sub(count) else {
            return Err(OutOfBlocks { wanted: count, free: self.available() });
        };
        table.extend(self.free.drain(rest..).rev());
        Ok(())
    }

    /// Takes blocks back.
    pub fn give(&mut self, blocks: &[u32]) {
        self.free.extend(blocks.iter().rev());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_lent_once_and_a_refusal_changes_nothing() {
        let mut pool = BlockPool::new(3);
        let mut table = Vec::new();
        pool.take(2, &mut table).unwrap();
        assert_eq!(table, [0, 1]);
        assert_eq!(pool.take(2, &mut table), Err(OutOfBlocks { wanted: 2, free: 1 }));
        assert_eq!((table.len(), pool.available()), (2, 1));
        pool.give(&table.split_off(1));
        pool.take(2, &mut table).unwrap();
        assert_eq!(table, [0, 1, 2]);
    }
}
