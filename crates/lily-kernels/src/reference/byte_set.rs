//! Sets of bytes, by where the bytes really are.

use std::collections::HashMap;
use std::ops::Range;

use crate::backend::BufferId;

/// Memory that a space stands for once the step's inputs are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// An intermediate of a fused op: private to the dispatch, never counted.
    Temp(u32),
    /// Scratch memory.
    Arena,
    /// Small f32 tensors.
    Constants,
    /// A weight file.
    Weights(u32),
    /// Recurrent state (both halves) or the KV pool (all blocks).
    Buffer(BufferId),
    /// A token slot.
    Slot(usize),
    /// Logits.
    Logits,
}

/// A set of bytes; one bit a byte, in words of 64.
#[derive(Debug, Clone, Default)]
pub struct ByteSet {
    words: HashMap<(Place, usize), u64>,
}

/// The words that a range touches, and which of their bits.
fn words(range: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
    let end = if range.is_empty() { 0 } else { range.end };
    (range.start / 64..end.div_ceil(64)).map(move |word| {
        let from = range.start.max(word * 64) - word * 64;
        let to = end.min((word + 1) * 64) - word * 64;
        (word, (u64::MAX >> (64 - (to - from))) << from)
    })
}

impl ByteSet {
    /// Adds a range.
    pub fn insert(&mut self, place: Place, range: Range<usize>) {
        for (word, bits) in words(range) {
            *self.words.entry((place, word)).or_default() |= bits;
        }
    }

    /// The first byte of a range that is not in the set.
    pub fn first_missing(&self, place: Place, range: Range<usize>) -> Option<usize> {
        words(range).find_map(|(word, bits)| {
            let missing = bits & !self.words.get(&(place, word)).copied().unwrap_or(0);
            (missing != 0).then(|| word * 64 + missing.trailing_zeros() as usize)
        })
    }

    /// Bytes in the set.
    pub fn len(&self) -> usize {
        self.words.values().map(|bits| bits.count_ones() as usize).sum()
    }

    /// Empties the set.
    pub fn clear(&mut self) {
        self.words.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_each_byte_once_and_finds_the_first_gap() {
        let mut set = ByteSet::default();
        set.insert(Place::Arena, 60..130);
        set.insert(Place::Arena, 64..128);
        set.insert(Place::Logits, 0..0);
        set.insert(Place::Logits, 8..8);
        assert_eq!(set.len(), 70);
        assert_eq!(set.first_missing(Place::Arena, 60..130), None);
        assert_eq!(set.first_missing(Place::Arena, 60..200), Some(130));
        assert_eq!(set.first_missing(Place::Arena, 0..64), Some(0));
        assert_eq!(set.first_missing(Place::Logits, 3..4), Some(3));
        set.clear();
        assert_eq!(set.len(), 0);
    }
}
