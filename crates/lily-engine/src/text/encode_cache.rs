//! Remembers the ids of texts encoded lately. A conversation is encoded whole at every turn, and all of it but the
//! last messages was encoded the turn before.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::TextError;

/// Shorter texts are not worth remembering, in bytes.
const MIN_TEXT: usize = 64;

/// Size of one generation in bytes, texts and ids together; there are at most two.
const GENERATION: usize = 32 << 20;

/// Text → ids. Forgets the texts that were not asked for since a generation ago.
#[derive(Debug)]
pub(super) struct EncodeCache {
    generations: Mutex<Generations>,
    generation_bytes: usize,
}

#[derive(Debug, Default)]
struct Generations {
    young: HashMap<Box<str>, Arc<[u32]>>,
    young_bytes: usize,
    old: HashMap<Box<str>, Arc<[u32]>>,
}

impl Default for EncodeCache {
    fn default() -> Self {
        Self { generations: Mutex::default(), generation_bytes: GENERATION }
    }
}

impl EncodeCache {
    /// Appends the ids of `text`, remembered or by `encode`.
    pub(super) fn extend(
        &self,
        ids: &mut Vec<u32>,
        text: &str,
        encode: impl FnOnce(&str, &mut Vec<u32>) -> Result<(), TextError>,
    ) -> Result<(), TextError> {
        if text.len() < MIN_TEXT {
            return encode(text, ids);
        }
        if let Some(known) = self.get(text) {
            ids.extend_from_slice(&known);
            return Ok(());
        }
        // Not under the lock: other threads may encode meanwhile.
        let start = ids.len();
        encode(text, ids)?;
        self.with(|generations| generations.put(text.into(), ids[start..].into(), self.generation_bytes));
        Ok(())
    }

    fn get(&self, text: &str) -> Option<Arc<[u32]>> {
        self.with(|generations| {
            if let Some(ids) = generations.young.get(text) {
                return Some(Arc::clone(ids));
            }
            let (text, ids) = generations.old.remove_entry(text)?;
            generations.put(text, Arc::clone(&ids), self.generation_bytes);
            Some(ids)
        })
    }

    fn with<T>(&self, use_generations: impl FnOnce(&mut Generations) -> T) -> T {
        // Whatever a panicking thread left behind are true entries.
        use_generations(&mut self.generations.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Generations {
    fn put(&mut self, text: Box<str>, ids: Arc<[u32]>, limit: usize) {
        let bytes = text.len() + size_of_val(&*ids);
        if bytes > limit {
            return;
        }
        if self.young_bytes + bytes > limit {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
        if self.young.insert(text, ids).is_none() {
            self.young_bytes += bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{EncodeCache, Generations};

    /// Asks for the bytes of `text` as ids; returns whether they had to be encoded.
    fn ask(cache: &EncodeCache, text: &str) -> bool {
        let mut encoded = false;
        let mut ids = vec![7];
        let result = cache.extend(&mut ids, text, |text, ids| {
            encoded = true;
            ids.extend(text.bytes().map(u32::from));
            Ok(())
        });
        assert_eq!(result, Ok(()));
        assert_eq!(ids, [7].into_iter().chain(text.bytes().map(u32::from)).collect::<Vec<_>>());
        encoded
    }

    #[test]
    fn what_is_used_stays_and_the_rest_goes() {
        let text = |letter: &str| letter.repeat(100);
        // Room for two texts of 500 bytes, ids included, in each generation.
        let cache = EncodeCache { generations: Generations::default().into(), generation_bytes: 1000 };
        assert!(ask(&cache, &text("a")) && !ask(&cache, &text("a")));
        for letter in ["b", "c", "d", "e", "f"] {
            assert!(ask(&cache, &text(letter)));
            assert!(!ask(&cache, &text("a")), "asked for at every turn");
        }
        assert!(ask(&cache, &text("b")), "not asked for since long");
        assert!(ask(&cache, "short") && ask(&cache, "short"));
        let long = "x".repeat(300);
        assert!(ask(&cache, &long) && ask(&cache, &long), "larger than a generation");
    }
}
