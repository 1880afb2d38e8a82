//! Text ↔ token ids of a byte-level BPE checkpoint. Control tokens are split off here, not in the `tokenizers`
//! crate, so that a prompt can say which spellings are control tokens and which are only text.
//! Knows nothing of templates and messages.

use std::ops::Range;

use serde::Deserialize;
use serde_json::Value;
use tokenizers::models::bpe::BPE;
use tokenizers::{Model as _, NormalizerWrapper, PreTokenizerWrapper};

use super::encode_cache::EncodeCache;
use super::parts::part_len;
use super::spoken::{Before, Spoken};
use super::{Rendered, TextError};
use crate::request::CancelToken;

/// Ends of a turn in this model family; they end a generation whatever `tokenizer_config.json` names.
const TURN_ENDS: [&str; 2] = ["<|im_end|>", "<|endoftext|>"];

/// Ids are below this: a bound on the tables that a damaged file can ask for.
const MAX_VOCAB: u32 = 1 << 22;

/// Text ↔ ids.
#[derive(Debug)]
pub struct Tokenizer {
    /// Normalizer, pre-tokenizer and merges; holds no added tokens, so it takes every text as text.
    plain: tokenizers::Tokenizer,
    /// Added tokens, longest spelling first.
    controls: Vec<ControlToken>,
    /// Whether a spelling starts with this byte.
    control_starts: [bool; 256],
    table: ByteTable,
    cache: EncodeCache,
    spoken: Spoken,
    stop_ids: Vec<u32>,
    tag_ids: TagIds,
}

/// Ids of the tags that structure an answer, where the checkpoint has them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TagIds {
    /// `<think>`
    pub think_start: Option<u32>,
    /// `</think>`
    pub think_end: Option<u32>,
    /// `<tool_call>`
    pub tool_call_start: Option<u32>,
    /// `</tool_call>`
    pub tool_call_end: Option<u32>,
}

/// One entry of `added_tokens`.
#[derive(Debug, Clone, Deserialize)]
struct ControlToken {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
}

/// The parts of `tokenizer.json` that we use.
#[derive(Deserialize)]
struct TokenizerFile {
    #[serde(default)]
    added_tokens: Vec<ControlToken>,
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    /// Read as what it must be: the crate's enum of models would parse it thrice.
    model: BPE,
}

/// What must be known before the `tokenizers` crate reads the file: it panics, or writes text without measure, on some
/// values of parts that no byte-level BPE has.
#[derive(Deserialize)]
struct Kinds {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    decoder: Value,
    model: ModelKind,
}

#[derive(Deserialize)]
struct ModelKind {
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    dropout: Option<f64>,
}

/// Raw bytes of every token, in one blob.
#[derive(Debug)]
struct ByteTable {
    bytes: Vec<u8>,
    /// By id; ids that no token has are empty ranges.
    spans: Vec<Range<u32>>,
    special: Vec<bool>,
}

/// A stretch of text.
#[derive(Debug, PartialEq, Eq)]
enum Piece<'a> {
    Text(&'a str),
    Control(u32),
}

impl Tokenizer {
    /// Reads `tokenizer.json` and, for the stop ids, `tokenizer_config.json`.
    ///
    /// # Errors
    /// The files are not what they should be, or the tokenizer is not a byte-level BPE.
    pub fn from_json(tokenizer_json: &[u8], tokenizer_config_json: Option<&[u8]>) -> Result<Self, TextError> {
        let file_error = |file, e: &dyn std::fmt::Display| TextError::File { file, reason: e.to_string() };
        let kinds: Kinds = serde_json::from_slice(tokenizer_json).map_err(|e| file_error("tokenizer.json", &e))?;
        kinds.check().map_err(|reason| file_error("tokenizer.json", &reason))?;
        let mut file: TokenizerFile =
            serde_json::from_slice(tokenizer_json).map_err(|e| file_error("tokenizer.json", &e))?;
        if let Some(byte) = byte_without_token(&file.model) {
            let reason = format!("the vocabulary has no token for the byte {byte:#04x}; texts with it would lose it");
            return Err(file_error("tokenizer.json", &reason));
        }
        let config: Value = match tokenizer_config_json {
            Some(bytes) => serde_json::from_slice(bytes).map_err(|e| file_error("tokenizer_config.json", &e))?,
            None => Value::Null,
        };

        file.added_tokens.retain(|token| !token.content.is_empty());
        let table = ByteTable::new(&file).map_err(|id| {
            file_error("tokenizer.json", &format!("token id {id} is not below {MAX_VOCAB}, the most Lily takes"))
        })?;
        let mut plain = tokenizers::Tokenizer::new(file.model);
        plain.with_normalizer(file.normalizer).map_err(|e| file_error("tokenizer.json", &e))?;
        plain.with_pre_tokenizer(file.pre_tokenizer);

        let mut controls = file.added_tokens;
        controls.sort_by_key(|token| std::cmp::Reverse(token.content.len()));
        let mut control_starts = [false; 256];
        for token in &controls {
            control_starts[usize::from(token.content.as_bytes()[0])] = true;
        }
        let mut tokenizer = Self {
            plain,
            controls,
            control_starts,
            table,
            cache: EncodeCache::default(),
            spoken: Spoken::default(),
            stop_ids: Vec::new(),
            tag_ids: TagIds::default(),
        };
        tokenizer.tag_ids = TagIds {
            think_start: tokenizer.token_to_id(super::THINK_START),
            think_end: tokenizer.token_to_id(super::THINK_END),
            tool_call_start: tokenizer.token_to_id(super::TOOL_CALL_START),
            tool_call_end: tokenizer.token_to_id(super::TOOL_CALL_END),
        };
        tokenizer.stop_ids = tokenizer.find_stop_ids(&config);
        Ok(tokenizer)
    }

    /// Ids of `text`. Spelled control tokens become control tokens, and nothing is added.
    ///
    /// # Errors
    /// The `tokenizers` crate refused the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TextError> {
        self.encode_unless(text, &CancelToken::default())
    }

    /// As `encode`, but ends early when cancelled.
    ///
    /// # Errors
    /// As `encode`, and [`TextError::Cancelled`].
    pub fn encode_unless(&self, text: &str, cancel: &CancelToken) -> Result<Vec<u32>, TextError> {
        let mut ids = Vec::new();
        for piece in self.pieces(text, |_| true) {
            match piece {
                Piece::Control(id) => ids.push(id),
                Piece::Text(text) => self.encode_text(text, &mut ids, cancel)?,
            }
        }
        Ok(ids)
    }

    /// Ids of a rendered prompt. Only what the template wrote becomes control tokens. Text that the model wrote itself, at
    /// this place behind these ids, keeps its ids.
    ///
    /// # Errors
    /// The `tokenizers` crate refused the text.
    pub fn encode_rendered(&self, rendered: &Rendered) -> Result<Vec<u32>, TextError> {
        self.encode_rendered_unless(rendered, &CancelToken::default())
    }

    /// As `encode_rendered`, but ends early when cancelled.
    ///
    /// # Errors
    /// As `encode_rendered`, and [`TextError::Cancelled`].
    pub fn encode_rendered_unless(&self, rendered: &Rendered, cancel: &CancelToken) -> Result<Vec<u32>, TextError> {
        let mut ids = Vec::new();
        let (mut before, mut hashed) = (Before::default(), 0);
        let any_spoken = !self.spoken.is_empty();
        for piece in self.pieces(rendered.guarded(), |range| !rendered.is_callers(range)) {
            match piece {
                Piece::Control(id) => ids.push(id),
                Piece::Text(text) => {
                    let text = rendered.unguard(text);
                    let mut spoken = None;
                    if any_spoken {
                        before.extend(&ids[hashed..]);
                        hashed = ids.len();
                        spoken = self.spoken.get(&before, &text);
                    }
                    match spoken {
                        Some(spoken) => ids.extend_from_slice(&spoken),
                        None => self.encode_text(&text, &mut ids, cancel)?,
                    }
                }
            }
        }
        Ok(ids)
    }

    /// Remembers the texts between the control tokens of a timeline that were generated, from `generated_from` on, and
    /// that would be encoded otherwise. An end of the timeline ends a text: the next turn closes it there.
    pub(super) fn remember(&self, ids: &[u32], generated_from: usize) {
        let is_control = |id: &u32| self.controls.iter().any(|control| control.id == *id);
        let Some(before_generated) = ids.get(..generated_from) else { return };
        let mut start = before_generated.iter().rposition(is_control).map_or(0, |last| last + 1);
        let mut before = Before::default();
        before.extend(&ids[..start]);
        while start < ids.len() {
            let len = ids[start..].iter().position(is_control);
            let text_ids = &ids[start..start + len.unwrap_or(ids.len() - start)];
            if let Ok(text) = String::from_utf8(self.bytes(text_ids)) {
                let mut usual = Vec::new();
                if self.encode_text(&text, &mut usual, &CancelToken::default()).is_ok() && usual != text_ids {
                    self.spoken.put(&before, &text, text_ids);
                }
            }
            let next = (start + text_ids.len() + 1).min(ids.len());
            before.extend(&ids[start..next]);
            start = next;
        }
    }

    fn bytes(&self, ids: &[u32]) -> Vec<u8> {
        ids.iter().flat_map(|id| self.token_bytes(*id)).copied().collect()
    }

    /// Text of `ids`, as Hugging Face decodes: invalid bytes become U+FFFD, an incomplete tail too.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut bytes = Vec::new();
        for &id in ids {
            if !(skip_special && self.is_special(id)) {
                bytes.extend_from_slice(self.token_bytes(id));
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Raw bytes of a token; empty for ids that no token has (padding rows of the vocabulary).
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        match self.table.spans.get(id as usize) {
            Some(span) => &self.table.bytes[span.start as usize..span.end as usize],
            None => &[],
        }
    }

    /// Whether decoding with `skip_special` leaves this token out.
    pub fn is_special(&self, id: u32) -> bool {
        self.table.special.get(id as usize).copied().unwrap_or(false)
    }

    /// Id of a token by its spelling in the vocabulary.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        let control = self.controls.iter().find(|control| control.content == token);
        control.map(|control| control.id).or_else(|| self.plain.get_model().token_to_id(token))
    }

    /// One more than the highest id. The model's table of logits may be longer.
    pub fn vocab_size(&self) -> usize {
        self.table.spans.len()
    }

    /// Ids that end a generation: `eos_token` of `tokenizer_config.json` and the family's turn ends.
    /// `generation_config.json` may name more.
    pub fn stop_ids(&self) -> &[u32] {
        &self.stop_ids
    }

    /// Ids of the think and tool-call tags.
    pub fn tag_ids(&self) -> TagIds {
        self.tag_ids
    }

    /// Spellings of the control tokens.
    pub fn control_tokens(&self) -> impl Iterator<Item = &str> {
        self.controls.iter().map(|control| control.content.as_str())
    }

    fn encode_text(&self, text: &str, ids: &mut Vec<u32>, cancel: &CancelToken) -> Result<(), TextError> {
        let mut rest = text;
        while !rest.is_empty() {
            if cancel.is_cancelled() {
                return Err(TextError::Cancelled);
            }
            let (part, behind) = rest.split_at(part_len(&self.plain, rest));
            rest = behind;
            self.cache.extend(ids, part, |text, ids| {
                let encoding = self.plain.encode_fast(text, false).map_err(|e| TextError::Encode(e.to_string()))?;
                ids.extend_from_slice(encoding.get_ids());
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Cuts `text` at the control tokens that `is_control` lets pass: leftmost first, then longest, as
    /// Hugging Face does.
    fn pieces<'a>(&self, text: &'a str, is_control: impl Fn(Range<usize>) -> bool) -> Vec<Piece<'a>> {
        let bytes = text.as_bytes();
        let mut pieces = Vec::new();
        let (mut text_start, mut at) = (0, 0);
        while at < bytes.len() {
            let found = self.control_starts[usize::from(bytes[at])].then(|| self.control_at(text, at)).flatten();
            let Some(control) = found.filter(|control| is_control(at..at + control.content.len())) else {
                at += 1;
                continue;
            };
            let mut end = at + control.content.len();
            let mut before = &text[text_start..at];
            if control.lstrip {
                before = before.trim_end();
            }
            if control.rstrip {
                end = text.len() - text[end..].trim_start().len();
            }
            if !before.is_empty() {
                pieces.push(Piece::Text(before));
            }
            pieces.push(Piece::Control(control.id));
            (text_start, at) = (end, end);
        }
        if text_start < text.len() {
            pieces.push(Piece::Text(&text[text_start..]));
        }
        pieces
    }

    /// The longest control token spelled at byte `at`.
    fn control_at(&self, text: &str, at: usize) -> Option<&ControlToken> {
        let rest = &text.as_bytes()[at..];
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        self.controls.iter().find(|control| {
            rest.starts_with(control.content.as_bytes())
                && !(control.single_word
                    && (text[..at].ends_with(is_word) || text[at + control.content.len()..].starts_with(is_word)))
        })
    }

    fn find_stop_ids(&self, config: &Value) -> Vec<u32> {
        let configured = config.get("eos_token").and_then(token_spelling);
        let mut ids: Vec<u32> =
            configured.into_iter().chain(TURN_ENDS).filter_map(|spelling| self.token_to_id(spelling)).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}

impl ByteTable {
    /// `Err` holds an id that is too large.
    fn new(file: &TokenizerFile) -> Result<Self, u32> {
        let alphabet = byte_alphabet();
        let mut tokens: Vec<(u32, Vec<u8>)> =
            file.model.get_vocab().into_iter().map(|(token, id)| (id, undo_alphabet(&token, &alphabet))).collect();
        // After the vocabulary, so that an added token that repeats one wins.
        tokens.extend(file.added_tokens.iter().map(|t| (t.id, undo_alphabet(&t.content, &alphabet))));
        let last = tokens.iter().map(|(id, _)| *id).max();
        if let Some(id) = last.filter(|id| *id >= MAX_VOCAB) {
            return Err(id);
        }
        let len = last.map_or(0, |id| id as usize + 1);
        let mut table = Self { bytes: Vec::new(), spans: vec![0..0; len], special: vec![false; len] };
        for (id, token) in tokens {
            let start = table.bytes.len() as u32;
            table.bytes.extend_from_slice(&token);
            table.spans[id as usize] = start..table.bytes.len() as u32;
        }
        for token in &file.added_tokens {
            table.special[token.id as usize] = token.special;
        }
        Ok(table)
    }
}

/// A token of `tokenizer_config.json`: a string, or an object with `content`.
pub(super) fn token_spelling(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token.get("content").and_then(Value::as_str))
}

impl Kinds {
    /// A byte-level BPE, in Unicode's normal forms or none. Says what is not.
    fn check(&self) -> Result<(), String> {
        let normalizers = ["NFC", "NFD", "NFKC", "NFKD"];
        let pre_tokenizers = ["Split", "ByteLevel", "Digits"];
        only("normalizer", &self.normalizer, "normalizers", &normalizers)?;
        only("pre_tokenizer", &self.pre_tokenizer, "pretokenizers", &pre_tokenizers)?;
        let byte_level = |part: &str, value, list| match names_byte_level(value, list) {
            true => Ok(()),
            false => Err(format!("the {part} is not ByteLevel, the only kind Lily reads")),
        };
        byte_level("pre_tokenizer", &self.pre_tokenizer, "pretokenizers")?;
        byte_level("decoder", &self.decoder, "decoders")?;
        let affixes = [&self.model.continuing_subword_prefix, &self.model.end_of_word_suffix];
        if affixes.into_iter().flatten().any(|affix| !affix.is_empty()) {
            return Err("the model marks tokens with a prefix or suffix, which no byte-level BPE does".into());
        }
        match self.model.dropout {
            None | Some(0.0) => Ok(()),
            Some(dropout) => Err(format!("the model has a dropout of {dropout}, which is for training")),
        }
    }
}

/// Refuses every kind but `known` in a part that is one step or a `Sequence` of steps in the field `list`.
fn only(part: &str, value: &Value, list: &str, known: &[&str]) -> Result<(), String> {
    match value.get("type").and_then(Value::as_str) {
        _ if value.is_null() => Ok(()),
        Some("Sequence") => {
            let steps = value.get(list).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            steps.iter().try_for_each(|step| only(part, step, list, known))
        }
        Some(kind) if known.contains(&kind) => Ok(()),
        kind => {
            let kind = kind.unwrap_or("without a type");
            Err(format!("a {part} {kind} is not one that Lily reads ({})", known.join(", ")))
        }
    }
}

fn names_byte_level(value: &Value, list: &str) -> bool {
    let nested = value.get(list).and_then(Value::as_array);
    value.get("type").and_then(Value::as_str) == Some("ByteLevel")
        || nested.is_some_and(|steps| steps.iter().any(|step| names_byte_level(step, list)))
}

/// A byte that the model could not spell.
fn byte_without_token(model: &BPE) -> Option<u8> {
    let spells = |code: u32| char::from_u32(code).is_some_and(|c| model.token_to_id(&c.to_string()).is_some());
    (0..).zip(byte_alphabet()).filter_map(|(code, byte)| byte.filter(|_| !spells(code))).next()
}

/// GPT-2's byte alphabet: the byte that each character below U+0144 stands for. Printable Latin-1 stands for
/// itself; the other bytes follow from U+0100 on.
fn byte_alphabet() -> Vec<Option<u8>> {
    let mut alphabet = vec![None; 0x144];
    let mut next = 0x100;
    for byte in 0..=255_u8 {
        let printable = matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
        let character = if printable { usize::from(byte) } else { next };
        next += usize::from(!printable);
        alphabet[character] = Some(byte);
    }
    alphabet
}

/// A token with a character outside the alphabet stands for its own UTF-8, as in Hugging Face's decoder.
fn undo_alphabet(token: &str, alphabet: &[Option<u8>]) -> Vec<u8> {
    let byte = |c: char| alphabet.get(c as usize).copied().flatten();
    token.chars().map(byte).collect::<Option<Vec<u8>>>().unwrap_or_else(|| token.as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::super::parts::PART;
    use super::*;

    fn demo() -> Tokenizer {
        Tokenizer::from_json(include_bytes!("../../../../models/lily-demo/tokenizer.json"), None).unwrap()
    }

    #[test]
    fn a_long_text_in_parts_has_the_tokens_of_the_whole() {
        let tokenizer = demo();
        let sentence = "It's 12 o'clock, e\u{301}t\u{e9} 漢字🙂  and\n\n\tall is  well; don't you think so? ";
        for piece in [sentence, "0123456789", "\n \t \r\n  ", "a\n \t \r\n  ", "漢字e\u{301}🙂", "+-= ++ "] {
            let text = piece.repeat(3 * PART / piece.len());
            // Lines without a word are one split, however many.
            assert_eq!(part_len(&tokenizer.plain, &text) < text.len(), !piece.trim().is_empty(), "{piece:?}");
            let whole = tokenizer.plain.encode_fast(text.as_str(), false).unwrap();
            assert!(tokenizer.encode(&text).unwrap() == whole.get_ids(), "{piece:?}");
        }
    }

    #[test]
    fn c42_the_familys_turn_ends_stop_whatever_the_configuration_names() {
        let json = include_bytes!("../../../../models/lily-demo/tokenizer.json");
        for config in [None, Some("{}"), Some(r#"{"eos_token": "<|endoftext|>"}"#), Some(r#"{"eos_token": "x"}"#)] {
            let tokenizer = Tokenizer::from_json(json, config.map(str::as_bytes)).unwrap();
            for end in TURN_ENDS {
                assert!(tokenizer.stop_ids().contains(&tokenizer.token_to_id(end).unwrap()), "{config:?} {end}");
            }
        }
    }

    #[test]
    fn a_long_text_is_left_when_nobody_waits_for_it() {
        let (tokenizer, cancel) = (demo(), CancelToken::default());
        let text = "all is well and all will be well ".repeat(PART);
        cancel.cancel();
        assert_eq!(tokenizer.encode_unless(&text, &cancel), Err(TextError::Cancelled));
    }
}
