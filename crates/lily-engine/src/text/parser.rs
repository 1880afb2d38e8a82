//! Output text → reasoning, content, tool calls, while it comes. Holds back only what can still become a tag;
//! the joined pieces do not depend on how the text was cut.

use std::ops::Range;

use super::arguments::Tools;
use super::tool_call::{CallScanner, Progress, first_tag, partial_tag};
use super::{FUNCTION_START, THINK_END, THINK_START, TOOL_CALL_END, TOOL_CALL_START};
use crate::request::Event;

/// Splits one generation's text.
#[derive(Debug)]
pub struct OutputParser {
    state: State,
    tools: Tools,
    /// Text that is not decided yet.
    pending: String,
    /// Bytes of the text before `pending`.
    decided: usize,
    /// Where in the text the content lies that came out last.
    content: Vec<Range<usize>>,
    /// Content or a call came out: from here on, think tags are text.
    answered: bool,
    /// A think block was closed: newlines that follow it are not content.
    after_think: bool,
    /// A call came out: white space that ends the answer after it is not content.
    after_call: bool,
    /// The last call had no `<tool_call>` of its own: a `</tool_call>` that follows belongs to it.
    awaits_close: bool,
    events: Vec<Event>,
}

#[derive(Debug)]
enum State {
    /// Everything is content.
    Verbatim,
    /// Inside the think block; `blank` until it says something.
    Reasoning { blank: bool },
    /// Content, or still before it.
    Answer,
    /// Inside what may be a call; `pending` holds it and the white space before it.
    Call(CallScanner),
    /// Inside `<tool_call>` tags that hold no call: text up to the closing tag.
    NoCall,
}

/// The kind of a text piece.
#[derive(Clone, Copy)]
enum Kind {
    Reasoning,
    Content,
}

impl OutputParser {
    /// A parser for one answer. `open_think` says that the prompt ends inside a think block; `tools` are the
    /// request's OpenAI tool objects, and without any, tool syntax is text.
    pub fn new(open_think: bool, tools: &[serde_json::Value]) -> Self {
        let state = if open_think { State::Reasoning { blank: true } } else { State::Answer };
        Self::in_state(state, Tools::new(tools))
    }

    /// A parser that takes everything as content, for prompts that are no conversation.
    pub fn verbatim() -> Self {
        Self::in_state(State::Verbatim, Tools::default())
    }

    fn in_state(state: State, tools: Tools) -> Self {
        Self {
            state,
            tools,
            pending: String::new(),
            decided: 0,
            content: Vec::new(),
            answered: false,
            after_think: false,
            after_call: false,
            awaits_close: false,
            events: Vec::new(),
        }
    }

    /// Byte ranges of all the text so far that became the content which the last call returned, ascending.
    pub fn content(&self) -> &[Range<usize>] {
        &self.content
    }

    /// Whether everything is content.
    pub fn is_verbatim(&self) -> bool {
        matches!(self.state, State::Verbatim)
    }

    /// Whether the text so far ends inside what may be a call.
    pub fn is_calling(&self) -> bool {
        matches!(self.state, State::Call(_) | State::NoCall)
    }

    /// Whether the text so far ends inside the think block.
    pub fn is_reasoning(&self) -> bool {
        matches!(self.state, State::Reasoning { .. })
    }

    /// Takes the next piece of text and returns what it decides.
    pub fn push(&mut self, text: &str) -> Vec<Event> {
        self.pending.push_str(text);
        self.run(false)
    }

    /// Ends the text: what was held back comes out. Call once.
    pub fn finish(&mut self) -> Vec<Event> {
        self.run(true)
    }

    fn run(&mut self, end: bool) -> Vec<Event> {
        self.content.clear();
        while match self.state {
            State::Verbatim => self.verbatim_step(),
            State::Reasoning { blank } => self.reasoning_step(blank, end),
            State::Answer => self.answer_step(end),
            State::Call(_) => self.call_step(end),
            State::NoCall => self.no_call_step(end),
        } {}
        std::mem::take(&mut self.events)
    }

    // Each step returns whether there may be more to do with what is pending.

    fn verbatim_step(&mut self) -> bool {
        self.emit(Kind::Content, self.pending.len());
        false
    }

    fn reasoning_step(&mut self, blank: bool, end: bool) -> bool {
        if blank {
            self.drop_leading(char::is_whitespace);
            // The prompt has opened the block; some models open it again.
            if self.drop_tag(THINK_START) {
                return true;
            }
            if !end && THINK_START.starts_with(&self.pending) {
                return false;
            }
        }
        let close = self.pending.find(THINK_END);
        let undecided = if end { 0 } else { partial_tag(&self.pending, &[THINK_END]) };
        let text = self.pending[..close.unwrap_or(self.pending.len() - undecided)].trim_end().len();
        if text > 0 {
            self.state = State::Reasoning { blank: false };
        }
        self.emit(Kind::Reasoning, text);
        match close {
            Some(_) => {
                self.drop_leading(char::is_whitespace);
                self.drop_tag(THINK_END);
                self.state = State::Answer;
                self.after_think = true;
                true
            }
            None => {
                if end {
                    self.drop_front(self.pending.len());
                }
                false
            }
        }
    }

    fn answer_step(&mut self, end: bool) -> bool {
        if !self.answered {
            let tags = [THINK_START, THINK_END];
            let text = self.pending.trim_start();
            if let Some(tag) = tags.into_iter().find(|tag| text.starts_with(tag)) {
                self.drop_leading(char::is_whitespace);
                self.drop_tag(tag);
                self.after_think = true;
                if tag == THINK_START {
                    self.state = State::Reasoning { blank: true };
                }
                return true;
            }
            if !end && tags.iter().any(|tag| tag.starts_with(text)) {
                return false;
            }
            if self.after_think {
                self.drop_leading(|c| c == '\n' || c == '\r');
            }
        }
        if self.tools.is_empty() {
            self.emit(Kind::Content, self.pending.len());
            return false;
        }
        self.content_step(end)
    }

    /// Content of a request with tools.
    fn content_step(&mut self, end: bool) -> bool {
        if self.awaits_close {
            let text = self.pending.trim_start();
            if text.starts_with(TOOL_CALL_END) {
                self.drop_leading(char::is_whitespace);
                self.drop_tag(TOOL_CALL_END);
            } else if !end && TOOL_CALL_END.starts_with(text) {
                return false;
            }
            self.awaits_close = false;
        }
        let tags = [TOOL_CALL_START, FUNCTION_START];
        if let Some((at, tag)) = first_tag(&self.pending, 0, &tags) {
            let text = self.pending[..at].trim_end().len();
            self.emit(Kind::Content, text);
            self.state = State::Call(CallScanner::new(tag == TOOL_CALL_START, at - text + tag.len()));
            return true;
        }
        if end {
            if self.after_call && self.pending.trim_end().is_empty() {
                self.drop_front(self.pending.len());
            }
            self.emit(Kind::Content, self.pending.len());
        } else {
            let decided = self.pending.len() - partial_tag(&self.pending, &tags);
            // White space may turn out to stand before a call.
            self.emit(Kind::Content, self.pending[..decided].trim_end().len());
        }
        false
    }

    fn call_step(&mut self, end: bool) -> bool {
        let State::Call(scanner) = &mut self.state else {
            return false;
        };
        let progress = scanner.advance(&self.pending);
        let (wrapped, start) = (scanner.wrapped, scanner.start);
        // A function without `<tool_call>` is prose unless it names a tool.
        let is_prose =
            !wrapped && scanner.calls.iter().any(|call| !call.name.is_empty() && !self.tools.has(&call.name));
        match progress {
            Progress::Incomplete if !is_prose => {
                if end {
                    self.emit(Kind::Content, self.pending.len());
                }
                false
            }
            Progress::Complete(call_end) if !is_prose => {
                let calls: Option<Vec<_>> = scanner.calls.iter().map(|call| self.tools.call(call)).collect();
                self.state = State::Answer;
                match calls {
                    Some(calls) => {
                        self.drop_front(call_end);
                        self.events.extend(calls.into_iter().map(Event::ToolCall));
                        (self.answered, self.after_call, self.awaits_close) = (true, true, !wrapped);
                    }
                    None => self.emit(Kind::Content, call_end),
                }
                true
            }
            Progress::Incomplete | Progress::Complete(_) | Progress::Malformed => {
                self.state = if wrapped { State::NoCall } else { State::Answer };
                self.emit(Kind::Content, start);
                true
            }
        }
    }

    fn no_call_step(&mut self, end: bool) -> bool {
        let tags = [TOOL_CALL_END, TOOL_CALL_START];
        match first_tag(&self.pending, 0, &tags) {
            Some((at, tag)) => {
                let text = if tag == TOOL_CALL_END { at + tag.len() } else { self.pending[..at].trim_end().len() };
                self.emit(Kind::Content, text);
                self.state = State::Answer;
                true
            }
            None => {
                let text = if end {
                    self.pending.len()
                } else {
                    let decided = self.pending.len() - partial_tag(&self.pending, &tags);
                    self.pending[..decided].trim_end().len()
                };
                self.emit(Kind::Content, text);
                false
            }
        }
    }

    /// Moves the first `len` bytes of `pending` out, into the last event if it is of the same kind.
    fn emit(&mut self, kind: Kind, len: usize) {
        if len == 0 {
            return;
        }
        if matches!(kind, Kind::Content) {
            self.content.push(self.decided..self.decided + len);
        }
        self.decided += len;
        let text = self.pending.drain(..len);
        match (kind, self.events.last_mut()) {
            (Kind::Reasoning, Some(Event::Reasoning(last))) | (Kind::Content, Some(Event::Content(last))) => {
                last.extend(text);
            }
            (Kind::Reasoning, _) => self.events.push(Event::Reasoning(text.collect())),
            (Kind::Content, _) => self.events.push(Event::Content(text.collect())),
        }
        self.answered |= matches!(kind, Kind::Content);
    }

    fn drop_leading(&mut self, is_dropped: impl Fn(char) -> bool) {
        let kept = self.pending.trim_start_matches(is_dropped).len();
        self.drop_front(self.pending.len() - kept);
    }

    /// Takes the first `len` bytes of `pending` away.
    fn drop_front(&mut self, len: usize) {
        self.pending.drain(..len);
        self.decided += len;
    }

    fn drop_tag(&mut self, tag: &str) -> bool {
        let starts = self.pending.starts_with(tag);
        if starts {
            self.drop_front(tag.len());
        }
        starts
    }
}
