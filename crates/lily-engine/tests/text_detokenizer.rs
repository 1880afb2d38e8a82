//! Streamed text equals decoded text, wherever the tokens cut it.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::path::Path;
use std::sync::Arc;

use lily_engine::text::{Detokenizer, Tokenizer};
use proptest::prelude::*;

fn demo() -> Arc<Tokenizer> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/lily-demo");
    Arc::new(Tokenizer::from_json(&std::fs::read(folder.join("tokenizer.json")).unwrap(), None).unwrap())
}

fn stream(tokenizer: &Arc<Tokenizer>, ids: &[u32]) -> Vec<String> {
    let mut detokenizer = Detokenizer::new(Arc::clone(tokenizer), true);
    ids.iter().map(|&id| detokenizer.push(id)).collect()
}

/// One token per byte: every character is split wherever it can be.
fn byte_ids(tokenizer: &Tokenizer, bytes: &[u8]) -> Vec<u32> {
    let id = |byte: &u8| (0..256).find(|&id| tokenizer.token_bytes(id) == [*byte]).unwrap();
    bytes.iter().map(id).collect()
}

const TEXTS: [&str; 6] = [
    "🙂 emoji 👨‍👩‍👧‍👦 and 🇩🇪",
    "你好，世界！日本語",
    "e\u{301}a\u{337}\u{313}\u{328}",
    "שָׁלוֹם नमस्ते ภาษาไทย",
    "plain\r\n\ttext",
    "\u{fffd}\u{10ffff}\u{0}",
];

#[test]
fn split_characters_come_whole() {
    let tokenizer = demo();
    for text in TEXTS {
        for ids in [byte_ids(&tokenizer, text.as_bytes()), tokenizer.encode(text).unwrap()] {
            let pieces = stream(&tokenizer, &ids);
            assert_eq!(pieces.concat(), tokenizer.decode(&ids, true));
            let replaced = |text: &str| text.matches('\u{fffd}').count();
            assert_eq!(replaced(&pieces.concat()), replaced(text));
        }
        // No text is held back once its characters are complete.
        let pieces = stream(&tokenizer, &byte_ids(&tokenizer, text.as_bytes()));
        assert_eq!(pieces.iter().filter(|piece| !piece.is_empty()).count(), text.chars().count());
    }
}

#[test]
fn a_cut_anywhere_drops_only_the_incomplete_character() {
    let tokenizer = demo();
    for text in TEXTS {
        let ids = byte_ids(&tokenizer, text.as_bytes());
        for len in 0..=ids.len() {
            let whole = (0..=len).rev().find(|&len| text.is_char_boundary(len)).unwrap();
            assert_eq!(stream(&tokenizer, &ids[..len]).concat(), text[..whole]);
        }
    }
}

#[test]
fn invalid_bytes_become_replacement_characters_at_once() {
    let tokenizer = demo();
    for bytes in
        [&b"a\xffb"[..], b"\xe4\xbdx", b"\xf0\x9f\x99\xf0\x9f\x99\x82", b"\x80\x80", b"\xc0\xaf", b"\xed\xa0\x80."]
    {
        let ids = byte_ids(&tokenizer, bytes);
        assert_eq!(stream(&tokenizer, &ids).concat(), String::from_utf8_lossy(bytes), "{bytes:x?}");
    }
    assert_eq!(stream(&tokenizer, &byte_ids(&tokenizer, b"\xff")), ["\u{fffd}"]);
}

#[test]
fn special_tokens_and_unknown_ids_have_no_text() {
    let tokenizer = demo();
    let special = tokenizer.token_to_id("<|im_end|>").unwrap();
    let tag = tokenizer.token_to_id("</think>").unwrap();
    assert_eq!(stream(&tokenizer, &[special, tag, 4096, u32::MAX]), ["", "</think>", "", ""]);
    // Also in the middle of a character.
    let mut ids = byte_ids(&tokenizer, "é".as_bytes());
    ids.insert(1, special);
    assert_eq!(stream(&tokenizer, &ids).concat(), "é");
}

proptest! {
    #[test]
    fn any_tokens_stream_as_they_decode(ids in prop::collection::vec(0_u32..4100, 0..40)) {
        let tokenizer = demo();
        let streamed = stream(&tokenizer, &ids).concat();
        let decoded = tokenizer.decode(&ids, true);
        let dropped_tail = decoded.strip_suffix('\u{fffd}').unwrap_or(&decoded);
        prop_assert!(streamed == decoded || streamed == dropped_tail, "{streamed:?} {decoded:?}");
    }
}
