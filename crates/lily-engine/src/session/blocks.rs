//! KV blocks of 256 positions, taken from one pool and shared by those who read them.

/// The pool is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the KV cache is full: {wanted} more blocks of 256 positions are needed, {free} are free; raise --context")]
pub struct OutOfBlocks {
    /// Blocks asked for.
    pub wanted: usize,
    /// Blocks left.
    pub free: usize,
}

/// Which blocks of the device's KV buffer are free, and how many holders each of the others has.
#[derive(Debug)]
pub struct BlockPool {
    free: Vec<u32>,
    holders: Vec<u32>,
}

impl BlockPool {
    /// A pool of `blocks` blocks.
    pub fn new(blocks: u32) -> Self {
        // Popped from the end: low numbers first keeps touched memory compact.
        Self { free: (0..blocks).rev().collect(), holders: vec![0; blocks as usize] }
    }

    /// Blocks in all.
    pub fn len(&self) -> usize {
        self.holders.len()
    }

    /// Free blocks.
    pub fn available(&self) -> usize {
        self.free.len()
    }

    /// Holders of a block.
    pub fn holders(&self, block: u32) -> u32 {
        self.holders[block as usize]
    }

    /// Moves `count` free blocks to `table`.
    ///
    /// # Errors
    /// Too few are free; nothing changed.
    pub fn take(&mut self, count: usize, table: &mut Vec<u32>) -> Result<(), OutOfBlocks> {
        let Some(rest) = self.available().checked_sub(count) else {
            return Err(OutOfBlocks { wanted: count, free: self.available() });
        };
        for block in self.free.drain(rest..).rev() {
            self.holders[block as usize] = 1;
            table.push(block);
        }
        Ok(())
    }

    /// One more holder of each.
    pub fn share(&mut self, blocks: &[u32]) {
        for block in blocks {
            self.holders[*block as usize] += 1;
        }
    }

    /// A holder gives blocks up; those of which it was the last are free.
    pub fn give(&mut self, blocks: &[u32]) {
        for block in blocks.iter().rev() {
            let holders = &mut self.holders[*block as usize];
            *holders -= 1;
            if *holders == 0 {
                self.free.push(*block);
            }
        }
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

    #[test]
    fn a_shared_block_is_free_when_its_last_holder_is_gone() {
        let mut pool = BlockPool::new(2);
        let mut table = Vec::new();
        pool.take(2, &mut table).unwrap();
        pool.share(&table[..1]);
        pool.give(&table);
        assert_eq!((pool.available(), pool.holders(0)), (1, 1));
        pool.give(&table[..1]);
        assert_eq!(pool.available(), 2);
    }
}
