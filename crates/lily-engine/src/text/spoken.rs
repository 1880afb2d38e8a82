//! How the model itself wrote earlier answers. Encoding an answer's text again can give other ids than those that were
//! generated; the next turn of the conversation would then part from what was computed. So the generated ids are
//! remembered, by the text and by all ids before it: in any other place the text is encoded as usual.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

/// Texts remembered; the oldest half goes when there are more.
const MAX_TEXTS: usize = 4096;

/// The ids before a text.
#[derive(Debug, Clone, Default)]
pub(super) struct Before(DefaultHasher);

impl Before {
    /// These ids follow.
    pub(super) fn extend(&mut self, ids: &[u32]) {
        ids.iter().for_each(|id| self.0.write_u32(*id));
    }

    fn key(&self, text: &str) -> u64 {
        let mut hasher = self.0.clone();
        hasher.write(text.as_bytes());
        hasher.finish()
    }
}

/// Texts with the ids that the model wrote them in.
#[derive(Debug, Default)]
pub(super) struct Spoken {
    texts: Mutex<Texts>,
}

#[derive(Debug, Default)]
struct Texts {
    by_key: HashMap<u64, Entry>,
    clock: u64,
}

#[derive(Debug)]
struct Entry {
    /// Two texts may share a key; they are compared.
    text: Box<str>,
    ids: Arc<[u32]>,
    added: u64,
}

impl Spoken {
    /// Whether there is anything to find.
    pub(super) fn is_empty(&self) -> bool {
        self.with(|texts| texts.by_key.is_empty())
    }

    /// The ids of a text behind these ids.
    pub(super) fn get(&self, before: &Before, text: &str) -> Option<Arc<[u32]>> {
        let key = before.key(text);
        self.with(|texts| {
            texts.by_key.get(&key).filter(|entry| *entry.text == *text).map(|entry| Arc::clone(&entry.ids))
        })
    }

    /// Remembers a text behind these ids.
    pub(super) fn put(&self, before: &Before, text: &str, ids: &[u32]) {
        let key = before.key(text);
        self.with(|texts| {
            texts.clock += 1;
            let added = texts.clock;
            texts.by_key.insert(key, Entry { text: text.into(), ids: ids.into(), added });
            if texts.by_key.len() > MAX_TEXTS {
                let oldest_kept = added - MAX_TEXTS as u64 / 2;
                texts.by_key.retain(|_, entry| entry.added > oldest_kept);
            }
        });
    }

    fn with<T>(&self, use_texts: impl FnOnce(&mut Texts) -> T) -> T {
        // Whatever a panicking thread left behind are true entries.
        use_texts(&mut self.texts.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn before(ids: &[u32]) -> Before {
        let mut before = Before::default();
        before.extend(ids);
        before
    }

    #[test]
    fn a_text_is_found_behind_its_own_ids_only() {
        let spoken = Spoken::default();
        assert!(spoken.is_empty());
        spoken.put(&before(&[1, 2]), "hello", &[7, 8]);
        assert_eq!(spoken.get(&before(&[1, 2]), "hello").as_deref(), Some(&[7, 8][..]));
        assert!(spoken.get(&before(&[1]), "hello").is_none() && spoken.get(&before(&[1, 2]), "hell").is_none());
    }

    #[test]
    fn the_oldest_texts_are_forgotten() {
        let spoken = Spoken::default();
        for i in 0..3 * MAX_TEXTS as u32 {
            spoken.put(&before(&[i]), "hello", &[i]);
        }
        assert!(spoken.with(|texts| texts.by_key.len()) <= MAX_TEXTS);
        let last = 3 * MAX_TEXTS as u32 - 1;
        assert!(spoken.get(&before(&[last]), "hello").is_some() && spoken.get(&before(&[0]), "hello").is_none());
    }
}
