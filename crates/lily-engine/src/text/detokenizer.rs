//! Tokens → text, one at a time. A character split over tokens appears when its last byte has come.

use std::sync::Arc;

use super::Tokenizer;

/// Incremental decoder of one generation.
///
/// The pieces, joined, are `Tokenizer::decode` of all ids without an incomplete last character: that one is
/// dropped, streaming or not.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    skip_special: bool,
    /// The first bytes of a character that is not complete: at most three.
    tail: Vec<u8>,
}

impl Detokenizer {
    /// A decoder at the start of a generation.
    pub fn new(tokenizer: Arc<Tokenizer>, skip_special: bool) -> Self {
        Self { tokenizer, skip_special, tail: Vec::new() }
    }

    /// Whether this token has no text.
    pub fn skips(&self, id: u32) -> bool {
        self.skip_special && self.tokenizer.is_special(id) || self.tokenizer.token_bytes(id).is_empty()
    }

    /// Text that this token completes; empty while a character is incomplete.
    /// Bytes that can no longer become a character turn into U+FFFD, one per maximal invalid stretch.
    pub fn push(&mut self, id: u32) -> String {
        if self.skips(id) {
            return String::new();
        }
        self.tail.extend_from_slice(self.tokenizer.token_bytes(id));
        let mut text = String::new();
        let mut done = 0;
        for chunk in self.tail.utf8_chunks() {
            text.push_str(chunk.valid());
            done += chunk.valid().len();
            let invalid = chunk.invalid();
            if done + invalid.len() == self.tail.len() && is_incomplete(invalid) {
                break;
            }
            if !invalid.is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
            }
            done += invalid.len();
        }
        self.tail.drain(..done);
        text
    }
}

/// Whether more bytes could make `bytes` one character.
fn is_incomplete(bytes: &[u8]) -> bool {
    !bytes.is_empty() && std::str::from_utf8(bytes).is_err_and(|e| e.error_len().is_none())
}
