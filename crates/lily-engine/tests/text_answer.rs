//! Stop strings against "find the earliest in all of the text", however the text is cut; and which tokens the content
//! consists of, each told once, with the piece of text that it begins in.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::path::Path;
use std::sync::Arc;

use lily_engine::request::{Event, Logprob, TokenLogprobs};
use lily_engine::text::{AnswerStream, Detokenizer, OutputParser, StopStrings, Tokenizer};
use proptest::prelude::*;
use serde_json::{Value, json};

fn demo() -> Arc<Tokenizer> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/lily-demo");
    Arc::new(Tokenizer::from_json(&std::fs::read(folder.join("tokenizer.json")).unwrap(), None).unwrap())
}

fn strings(list: &[&str]) -> Vec<String> {
    list.iter().map(|text| (*text).to_owned()).collect()
}

/// The text before the stop string that begins first.
fn before_stop<'a>(text: &'a str, stops: &[String]) -> (&'a str, bool) {
    let first = stops.iter().filter_map(|stop| text.find(stop.as_str())).min();
    (&text[..first.unwrap_or(text.len())], first.is_some())
}

/// What must be held back of a text without stop string: its longest end that begins one.
fn undecided(text: &str, stops: &[String]) -> usize {
    let begins = |at: &usize| stops.iter().any(|stop| stop.starts_with(&text[*at..]));
    let at = text.char_indices().map(|(at, _)| at).find(begins);
    text.len() - at.unwrap_or(text.len())
}

/// Pushes the pieces; checks at each that no more came out than may, and no less than must.
fn cut(pieces: &[&str], stops: &[String]) -> (String, bool) {
    let (whole, mut scanner) = (pieces.concat(), StopStrings::new(stops));
    let (want, _) = before_stop(&whole, stops);
    let (mut read, mut got) = (String::new(), String::new());
    for piece in pieces {
        read.push_str(piece);
        got += &scanner.push(piece);
        assert!(want.starts_with(&got), "{got:?} came out of {whole:?} with {stops:?}");
        if !before_stop(&read, stops).1 {
            assert_eq!(read.len() - got.len(), undecided(&read, stops), "held back of {read:?} with {stops:?}");
        }
    }
    got += &scanner.flush();
    (got, scanner.stopped())
}

#[test]
fn the_earliest_stop_string_wins_even_if_another_is_complete_sooner() {
    for (text, stops, want) in [
        ("Hello world", &["world"][..], "Hello "),
        ("xabcdex", &["bcd", "abcde"], "x"),
        ("xabcdz", &["bcd", "abcde"], "xa"),
        ("xabcd", &["bcd", "abcde"], "xa"),
        ("aaab", &["aab", "b"], "a"),
        ("abab!", &["ab"], ""),
        ("a🙂é🙂", &["é🙂"], "a🙂"),
        ("no end", &["ends", "\n"], "no end"),
        ("ababac", &["abac"], "ab"),
    ] {
        let stops = strings(stops);
        let mut buffer = [0; 4];
        let chars: Vec<String> = text.chars().map(|c| c.encode_utf8(&mut buffer).to_owned()).collect();
        let chars: Vec<&str> = chars.iter().map(String::as_str).collect();
        for (at, _) in text.char_indices() {
            assert_eq!(cut(&[&text[..at], &text[at..]], &stops).0, want, "{text:?} cut at {at}");
        }
        assert_eq!(cut(&chars, &stops).0, want, "{text:?} by character");
    }
}

#[test]
fn nothing_reaches_over_a_flush() {
    let mut scanner = StopStrings::new(&strings(&["abc"]));
    let pieces = [scanner.push("xab"), scanner.flush(), scanner.push("c ab"), scanner.push("c!"), scanner.push("!")];
    assert_eq!(pieces, ["x", "ab", "c ", "", ""]);
    assert!(scanner.stopped());
}

fn scores(id: u32, index: usize) -> TokenLogprobs {
    let token = Logprob { id, bytes: Vec::new(), logprob: -(index as f32) };
    TokenLogprobs { token, top: Vec::new(), in_content: false }
}

/// An answer's content, the tokens told with each piece of it, and whether a stop string ended it.
#[derive(Debug, Default, PartialEq)]
struct Told {
    content: String,
    pieces: Vec<(Vec<usize>, String)>,
    calls: usize,
    stopped: bool,
}

fn tell(tokenizer: &Arc<Tokenizer>, parser: OutputParser, stops: &[String], ids: &[u32]) -> Told {
    let mut answer = AnswerStream::new(Detokenizer::new(Arc::clone(tokenizer), true), parser, stops);
    let mut events = Vec::new();
    for (i, id) in ids.iter().enumerate() {
        events.extend(answer.push(*id, Some(scores(*id, i))));
    }
    events.extend(answer.finish());
    let (mut told, mut waiting) = (Told { stopped: answer.stopped(), ..Told::default() }, Vec::new());
    for event in events {
        match event {
            Event::Logprobs(tokens) => {
                assert!(waiting.is_empty() && !tokens.is_empty(), "the piece follows its tokens");
                waiting = tokens.iter().map(|token| -token.token.logprob as usize).collect();
            }
            Event::Content(text) => {
                assert!(!text.is_empty());
                told.content += &text;
                told.pieces.push((std::mem::take(&mut waiting), text));
            }
            Event::ToolCall(_) => told.calls += 1,
            Event::Reasoning(_) => {}
            event @ (Event::Start { .. } | Event::Prefill { .. }) => panic!("{event:?}"),
        }
    }
    assert!(waiting.is_empty());
    let all = answer.take_logprobs();
    let in_content: Vec<usize> = all.iter().enumerate().filter(|(_, t)| t.in_content).map(|(i, _)| i).collect();
    let told_all: Vec<usize> = told.pieces.iter().flat_map(|(tokens, _)| tokens.clone()).collect();
    assert_eq!(in_content, told_all, "each token of the content once, in order");
    told
}

fn ids_of(tokenizer: &Tokenizer, pieces: &[&str]) -> Vec<u32> {
    pieces.iter().flat_map(|piece| tokenizer.encode(piece).unwrap()).collect()
}

/// One token a byte.
fn byte_ids(tokenizer: &Tokenizer, bytes: &[u8]) -> Vec<u32> {
    let id = |byte: &u8| (0..256).find(|&id| tokenizer.token_bytes(id) == [*byte]).unwrap();
    bytes.iter().map(id).collect()
}

#[test]
fn reasoning_tags_and_what_is_cut_off_are_no_content_tokens() {
    let tokenizer = demo();
    let pieces = ["6", "+", "7", "</think>", "\n\n", "1", "3", "!", "<|im_end|>"];
    let ids: Vec<u32> = pieces
        .iter()
        .flat_map(|piece| tokenizer.token_to_id(piece).map_or_else(|| tokenizer.encode(piece).unwrap(), |id| vec![id]))
        .collect();
    let answer = tell(&tokenizer, OutputParser::new(true, &[]), &[], &ids);
    let first = ids.len() - 4;
    assert_eq!(answer.content, "13!");
    let told: Vec<usize> = answer.pieces.iter().flat_map(|(tokens, _)| tokens.clone()).collect();
    assert_eq!(told, [first, first + 1, first + 2]);
    let answer = tell(&tokenizer, OutputParser::new(true, &[]), &strings(&["3!"]), &ids);
    assert_eq!((answer.content.as_str(), answer.stopped), ("1", true));
    assert_eq!(answer.pieces, [(vec![first], "1".to_owned())]);
    // Reasoning is not looked at.
    let answer = tell(&tokenizer, OutputParser::new(true, &[]), &strings(&["+", "6"]), &ids);
    assert_eq!((answer.content.as_str(), answer.stopped), ("13!", false));
}

#[test]
fn a_character_comes_with_all_its_tokens_and_an_incomplete_one_with_none() {
    let tokenizer = demo();
    let mut ids = byte_ids(&tokenizer, "a🙂b".as_bytes());
    ids.push(byte_ids(&tokenizer, b"\xf0")[0]);
    let answer = tell(&tokenizer, OutputParser::verbatim(), &[], &ids);
    let pieces = [(vec![0], "a"), (vec![1, 2, 3, 4], "🙂"), (vec![5], "b")];
    assert_eq!(answer.pieces, pieces.map(|(tokens, text)| (tokens, text.to_owned())));
}

#[test]
fn stop_strings_do_not_reach_over_calls_or_into_them() {
    let tokenizer = demo();
    let tools: [Value; 1] = [json!({"type": "function", "function": {"name": "ping"}})];
    let text = "Let<tool_call>\n<function=ping>\n</function>\n</tool_call>us see";
    let ids = byte_ids(&tokenizer, text.as_bytes());
    let parser = || OutputParser::new(false, &tools);
    for (stop, content, calls, stopped) in [
        ("ping", "Letus see", 1, false),
        ("Letus", "Letus see", 1, false),
        ("et", "L", 0, true),
        (" see", "Letus", 1, true),
    ] {
        let answer = tell(&tokenizer, parser(), &strings(&[stop]), &ids);
        assert_eq!((answer.content.as_str(), answer.calls, answer.stopped), (content, calls, stopped), "{stop}");
    }
    // A call that a bound on tokens cut comes as text, whole.
    let ids = byte_ids(&tokenizer, b"Let<tool_call>\n<function=ping");
    let answer = tell(&tokenizer, parser(), &strings(&["<", "ping"]), &ids);
    assert_eq!((answer.content.as_str(), answer.stopped), ("Let<tool_call>\n<function=ping", false));
}

fn words(most: usize) -> impl Strategy<Value = String> {
    let letters = prop::sample::select(vec!["a", "b", "ab", "c", "é", "🙂", "\n"]);
    prop::collection::vec(letters, 0..most).prop_map(|letters| letters.concat())
}

fn stops() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(words(5).prop_filter("not empty", |stop| !stop.is_empty()), 0..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn any_cut_of_any_text_ends_before_the_earliest_stop_string(
        text in words(24), stops in stops(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let mut bounds: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).filter(|&at| text.is_char_boundary(at)).collect();
        bounds.extend([0, text.len()]);
        bounds.sort_unstable();
        let pieces: Vec<&str> = bounds.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
        let (want, found) = before_stop(&text, &stops);
        let (got, stopped) = cut(&pieces, &stops);
        prop_assert_eq!((got.as_str(), stopped), (want, found));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Tokens that cut characters too: a piece of text as the tokenizer has it, or byte by byte.
    #[test]
    fn any_tokens_end_before_the_earliest_stop_string_and_are_told_once(
        words in prop::collection::vec((words(4), any::<bool>()), 0..8), stops in stops(),
    ) {
        let tokenizer = demo();
        let ids: Vec<u32> = words
            .iter()
            .flat_map(|(text, bytes)| if *bytes { byte_ids(&tokenizer, text.as_bytes()) } else { ids_of(&tokenizer, &[text]) })
            .collect();
        let text: String = words.iter().map(|(text, _)| text.as_str()).collect();
        let (want, found) = before_stop(&text, &stops);
        let answer = tell(&tokenizer, OutputParser::verbatim(), &stops, &ids);
        prop_assert_eq!((answer.content.as_str(), answer.stopped), (want, found));
        // Tokens and text begin together and end together, but for what the stop string cuts.
        let told: Vec<usize> = answer.pieces.iter().flat_map(|(tokens, _)| tokens.clone()).collect();
        let bytes: Vec<u8> = told.iter().flat_map(|index| tokenizer.token_bytes(ids[*index]).to_vec()).collect();
        prop_assert!(told.iter().copied().eq(0..told.len()));
        prop_assert!(bytes.starts_with(want.as_bytes()) && (found || bytes.len() == want.len()));
        let without_last = told.split_last().map_or(0, |(last, _)| bytes.len() - tokenizer.token_bytes(ids[*last]).len());
        prop_assert!(without_last <= want.len());
    }
}
