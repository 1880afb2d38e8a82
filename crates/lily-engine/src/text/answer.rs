//! Generated tokens → events: text, its parts, the end at a stop string, and with each piece of content the
//! log-probabilities of its tokens.

use std::collections::VecDeque;
use std::ops::Range;

use super::{Detokenizer, OutputParser, StopStrings};
use crate::request::{Event, TokenLogprobs};

/// The answer to one request, as it comes. Stop tokens may be pushed or not: they have no text.
#[derive(Debug)]
pub struct AnswerStream {
    detokenizer: Detokenizer,
    parser: OutputParser,
    stops: StopStrings,
    scored: Option<ScoredTokens>,
    events: Vec<Event>,
}

impl AnswerStream {
    /// An answer that has not begun. The content ends before the first of the `stops`; reasoning and tool calls are not
    /// looked at.
    pub fn new(detokenizer: Detokenizer, parser: OutputParser, stops: &[String]) -> Self {
        Self { detokenizer, parser, stops: StopStrings::new(stops), scored: None, events: Vec::new() }
    }

    /// The events that this token decides; with `scores`, the log-probabilities of the content's tokens among them.
    pub fn push(&mut self, id: u32, scores: Option<TokenLogprobs>) -> Vec<Event> {
        if self.stopped() {
            return Vec::new();
        }
        let text = self.detokenizer.push(id);
        if let Some(scores) = scores {
            // Where all is content, a control token without text comes with the text behind it.
            let has_text = self.parser.is_verbatim() || !self.detokenizer.skips(id);
            self.scored.get_or_insert_default().add(scores, has_text, text.len());
        }
        if !text.is_empty() {
            let parts = self.parser.push(&text);
            self.take(parts);
        }
        std::mem::take(&mut self.events)
    }

    /// Takes the token that ended the answer, whose text is no part of it.
    pub fn end(&mut self, scores: Option<TokenLogprobs>) {
        if let Some(scores) = scores {
            self.scored.get_or_insert_default().add(scores, false, 0);
        }
    }

    /// Ends the answer: what was held back. An incomplete last character is dropped. Call once.
    pub fn finish(&mut self) -> Vec<Event> {
        if !self.stopped() && self.parser.is_calling() {
            // A call that was cut is text, but not one to look for stop strings in.
            let rest = self.stops.flush();
            self.content(rest);
            self.stops = StopStrings::new(&[]);
        }
        if !self.stopped() {
            let parts = self.parser.finish();
            self.take(parts);
            let rest = self.stops.flush();
            self.content(rest);
        }
        std::mem::take(&mut self.events)
    }

    /// Whether the answer is inside its think block.
    pub fn is_reasoning(&self) -> bool {
        self.parser.is_reasoning()
    }

    /// Whether a stop string ended the answer. Nothing comes out from then on.
    pub fn stopped(&self) -> bool {
        self.stops.stopped()
    }

    /// Of every token pushed, in order; none if they came without.
    pub fn take_logprobs(&mut self) -> Vec<TokenLogprobs> {
        self.scored.take().map(|scored| scored.all).unwrap_or_default()
    }

    fn take(&mut self, parts: Vec<Event>) {
        if let Some(scored) = &mut self.scored {
            scored.decide(self.parser.content());
        }
        for part in parts {
            if let Event::Content(text) = part {
                let text = self.stops.push(&text);
                self.content(text);
            } else {
                // A stop string does not reach over a call.
                let text = self.stops.flush();
                self.content(text);
                if !self.stopped() {
                    self.events.push(part);
                }
            }
            if self.stopped() {
                return;
            }
        }
    }

    fn content(&mut self, text: String) {
        if text.is_empty() {
            return;
        }
        if let Some(scored) = &mut self.scored {
            let tokens = scored.send(text.len());
            if !tokens.is_empty() {
                self.events.push(Event::Logprobs(tokens));
            }
        }
        self.events.push(Event::Content(text));
    }
}

/// Finds out which tokens the content consists of, and with which piece of it each comes out: with the first that
/// holds any of its text. All positions are bytes.
#[derive(Debug, Default)]
struct ScoredTokens {
    all: Vec<TokenLogprobs>,
    /// Tokens that so far are parts of a character.
    incomplete: Vec<usize>,
    /// Tokens that are no content yet, and where in the text theirs lies.
    undecided: VecDeque<(usize, Range<usize>)>,
    /// Tokens that were not sent yet, and where in the content theirs begins.
    ready: VecDeque<(usize, usize)>,
    text_len: usize,
    content_len: usize,
    sent: usize,
}

impl ScoredTokens {
    /// A token with which `text_len` bytes of text came out. It and those that waited for it share them.
    fn add(&mut self, scores: TokenLogprobs, has_text: bool, text_len: usize) {
        if has_text {
            self.incomplete.push(self.all.len());
        }
        self.all.push(scores);
        if text_len > 0 {
            let text = self.text_len..self.text_len + text_len;
            self.text_len = text.end;
            self.undecided.extend(self.incomplete.drain(..).map(|index| (index, text.clone())));
        }
    }

    /// These ranges of the text became content.
    fn decide(&mut self, content: &[Range<usize>]) {
        for range in content {
            while let Some((index, text)) = self.undecided.front().filter(|(_, text)| text.start < range.end) {
                if text.end > range.start {
                    let begin = text.start.max(range.start) - range.start;
                    self.ready.push_back((*index, self.content_len + begin));
                }
                self.undecided.pop_front();
            }
            self.content_len += range.len();
        }
    }

    /// The next `len` bytes of the content go out; the tokens that begin in them.
    fn send(&mut self, len: usize) -> Vec<TokenLogprobs> {
        self.sent += len;
        let mut tokens = Vec::new();
        while let Some((index, _)) = self.ready.front().filter(|(_, begin)| *begin < self.sent) {
            let token = &mut self.all[*index];
            token.in_content = true;
            tokens.push(token.clone());
            self.ready.pop_front();
        }
        tokens
    }
}
