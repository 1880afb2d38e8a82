//! Where a long text may be cut without a change of its tokens, so that its encoding can be left in the middle and takes
//! memory for a part at a time.

use tokenizers::{Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

/// Bytes of a text that are encoded at once, at least.
pub(super) const PART: usize = 256 << 10;

/// What the end of a window may change before it, in bytes: splits look ahead by a character.
const MARGIN: usize = 4 << 10;

/// Length of the first part of `text`.
pub(super) fn part_len(tokenizer: &tokenizers::Tokenizer, text: &str) -> usize {
    let mut window = 2 * PART;
    while window < text.len() {
        let end = (0..=window).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
        let head = &text[..end];
        if let Some(at) = between_words(head).or_else(|| between_splits(tokenizer, head)) {
            return at;
        }
        window *= 2;
    }
    text.len()
}

/// Before a space that stands between two ASCII letters: no split of a byte-level BPE goes on from a letter over a space,
/// and no normal form reaches over either.
fn between_words(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let letter = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_alphabetic);
    (PART..bytes.len()).find(|at| bytes[*at] == b' ' && letter(at - 1) && letter(at + 1))
}

/// Where the tokenizer itself splits. Splits are found from the left, so those well before the end stay as they are
/// whatever follows.
fn between_splits(tokenizer: &tokenizers::Tokenizer, text: &str) -> Option<usize> {
    let mut splits = PreTokenizedString::from(text);
    if let Some(normalizer) = tokenizer.get_normalizer() {
        splits.normalize(|part| normalizer.normalize(part)).ok()?;
    }
    tokenizer.get_pre_tokenizer()?.pre_tokenize(&mut splits).ok()?;
    let limit = text.len().saturating_sub(MARGIN);
    let starts = splits.get_splits(OffsetReferential::Original, OffsetType::Byte);
    let last = starts.into_iter().map(|(_, (start, _), _)| start).take_while(|start| *start <= limit).last();
    last.filter(|at| *at > 0 && text.is_char_boundary(*at))
}
