//! Reads one tool call in Qwen's XML form out of a growing text. Decides only what later text cannot change, so
//! the result does not depend on how the text was cut. Knows no tools and no types.

use super::{FUNCTION_START, TOOL_CALL_END, TOOL_CALL_START};

const FUNCTION_END: &str = "</function>";
const PARAMETER_START: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";

/// Longest function or parameter name, in bytes.
const MAX_NAME: usize = 256;

/// A call as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RawCall {
    pub name: String,
    /// Values as text, without the newline after the opening and before the closing tag.
    pub parameters: Vec<(String, String)>,
}

/// What is known so far.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// More text is needed.
    Incomplete,
    /// The calls end at this byte.
    Complete(usize),
    /// This is no call, whatever follows.
    Malformed,
}

/// Position in
/// `[<tool_call>] (<function=NAME> (<parameter=KEY> VALUE </parameter>)* </function>)+ [</tool_call>]`.
#[derive(Debug)]
pub(super) struct CallScanner {
    /// Whether it began with `<tool_call>`; if not, it is one function.
    pub wrapped: bool,
    /// First byte after the tag it began with.
    pub start: usize,
    /// Functions read so far.
    pub calls: Vec<RawCall>,
    at: usize,
    stage: Stage,
}

#[derive(Debug, Clone, Copy)]
enum Stage {
    Function,
    Name,
    ParameterOrEnd,
    Key,
    Value(Value),
    Close,
}

/// An open value.
#[derive(Debug, Clone, Copy)]
struct Value {
    /// First byte after the parameter's tag.
    start: usize,
    /// No end before this byte.
    searched: usize,
    /// Calls inside the value that are open at `searched`.
    depth: usize,
}

/// What stands at a position, white space aside.
enum Found {
    /// Which of the expected tags, and its end.
    Tag(usize, usize),
    /// Too little text to tell.
    Partial,
    Other,
}

impl CallScanner {
    /// A scanner that stands after `<tool_call>` (`wrapped`) or after `<function=`, at byte `start`.
    pub(super) fn new(wrapped: bool, start: usize) -> Self {
        let stage = if wrapped { Stage::Function } else { Stage::Name };
        let mut scanner = Self { wrapped, start, calls: Vec::new(), at: start, stage };
        if !wrapped {
            scanner.begin_function(start);
        }
        scanner
    }

    /// Reads on in `text`, which has grown since the last call.
    pub(super) fn advance(&mut self, text: &str) -> Progress {
        loop {
            let progress = match self.stage {
                Stage::Function => self.function(text),
                Stage::Name | Stage::Key => self.label(text),
                Stage::ParameterOrEnd => self.parameter_or_end(text),
                Stage::Value(value) => self.value(text, value),
                Stage::Close => self.close(text),
            };
            if let Some(progress) = progress {
                return progress;
            }
        }
    }

    fn begin_function(&mut self, at: usize) {
        self.calls.push(RawCall { name: String::new(), parameters: Vec::new() });
        (self.at, self.stage) = (at, Stage::Name);
    }

    fn function(&mut self, text: &str) -> Option<Progress> {
        match find_tag(text, self.at, &[FUNCTION_START]) {
            Found::Tag(_, end) => self.begin_function(end),
            Found::Partial => return Some(Progress::Incomplete),
            Found::Other => return Some(Progress::Malformed),
        }
        None
    }

    /// A name up to `>`, or up to the end of the line where the model forgot the `>`.
    fn label(&mut self, text: &str) -> Option<Progress> {
        let rest = &text.as_bytes()[self.at..];
        let window = &rest[..rest.len().min(MAX_NAME)];
        let Some(len) = window.iter().position(|byte| matches!(byte, b'>' | b'\n')) else {
            let too_long = window.len() == MAX_NAME;
            return Some(if too_long { Progress::Malformed } else { Progress::Incomplete });
        };
        let label = text[self.at..self.at + len].trim().to_owned();
        if label.is_empty() || label.contains('<') {
            return Some(Progress::Malformed);
        }
        // A missing `>` leaves its newline to the value, which drops it.
        self.at += len + usize::from(window[len] == b'>');
        let Some(call) = self.calls.last_mut() else {
            return Some(Progress::Malformed);
        };
        if call.name.is_empty() {
            call.name = label;
            self.stage = Stage::ParameterOrEnd;
        } else {
            call.parameters.push((label, String::new()));
            self.stage = Stage::Value(Value { start: self.at, searched: self.at, depth: 0 });
        }
        None
    }

    fn parameter_or_end(&mut self, text: &str) -> Option<Progress> {
        match find_tag(text, self.at, &[PARAMETER_START, FUNCTION_END]) {
            Found::Tag(0, end) => (self.at, self.stage) = (end, Stage::Key),
            Found::Tag(_, end) if self.wrapped => (self.at, self.stage) = (end, Stage::Close),
            Found::Tag(_, end) => return Some(Progress::Complete(end)),
            Found::Partial => return Some(Progress::Incomplete),
            Found::Other => return Some(Progress::Malformed),
        }
        None
    }

    /// A value ends at the first `</parameter>` that is followed by another parameter or the function's end, so
    /// that it may hold code which looks like tags. Whole calls inside it (a file about tool calls) are text:
    /// `depth` counts those that are open.
    fn value(&mut self, text: &str, value: Value) -> Option<Progress> {
        let tags = [PARAMETER_END, FUNCTION_END, TOOL_CALL_START];
        let Some((at, tag)) = first_tag(text, value.searched, &tags) else {
            // The end of the text may hold the beginning of a tag.
            let searched = text.len() - partial_tag(&text[value.searched..], &tags);
            self.stage = Stage::Value(Value { searched, ..value });
            return Some(Progress::Incomplete);
        };
        let after = at + tag.len();
        let expected: &[&str] = match tag {
            PARAMETER_END => &[PARAMETER_START, FUNCTION_END],
            FUNCTION_END => &[TOOL_CALL_END],
            _ => &[FUNCTION_START],
        };
        let depth = match find_tag(text, after, expected) {
            Found::Partial => {
                self.stage = Stage::Value(Value { searched: at, ..value });
                return Some(Progress::Incomplete);
            }
            Found::Tag(..) if tag == TOOL_CALL_START => value.depth + 1,
            Found::Tag(..) if tag == FUNCTION_END && value.depth > 0 => value.depth - 1,
            // The whole call ends while the value is open: the model forgot `</parameter>`.
            Found::Tag(..) if tag == FUNCTION_END => return Some(Progress::Malformed),
            Found::Tag(..) if value.depth == 0 => {
                self.end_value(&text[value.start..at]);
                (self.at, self.stage) = (after, Stage::ParameterOrEnd);
                return None;
            }
            Found::Tag(..) | Found::Other => value.depth,
        };
        self.stage = Stage::Value(Value { searched: after, depth, ..value });
        None
    }

    fn end_value(&mut self, value: &str) {
        let value = value.strip_prefix('\n').unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        if let Some((_, slot)) = self.calls.last_mut().and_then(|call| call.parameters.last_mut()) {
            value.clone_into(slot);
        }
    }

    fn close(&mut self, text: &str) -> Option<Progress> {
        match find_tag(text, self.at, &[TOOL_CALL_END, FUNCTION_START]) {
            Found::Tag(0, end) => return Some(Progress::Complete(end)),
            Found::Tag(_, end) => self.begin_function(end),
            Found::Partial => return Some(Progress::Incomplete),
            Found::Other => return Some(Progress::Malformed),
        }
        None
    }
}

fn find_tag(text: &str, at: usize, tags: &[&str]) -> Found {
    let rest = text[at..].trim_start();
    let start = text.len() - rest.len();
    for (i, tag) in tags.iter().enumerate() {
        if rest.starts_with(tag) {
            return Found::Tag(i, start + tag.len());
        }
    }
    if tags.iter().any(|tag| tag.starts_with(rest)) { Found::Partial } else { Found::Other }
}

/// The first of `tags` in `text` from byte `from` on, and where it stands.
pub(super) fn first_tag<'a>(text: &str, from: usize, tags: &[&'a str]) -> Option<(usize, &'a str)> {
    tags.iter().filter_map(|tag| Some((from + text[from..].find(tag)?, *tag))).min()
}

/// How many bytes at the end of `text` may be the beginning of one of `tags`.
pub(super) fn partial_tag(text: &str, tags: &[&str]) -> usize {
    let bytes = text.as_bytes();
    let longest = tags.iter().map(|tag| tag.len() - 1).max().unwrap_or(0).min(bytes.len());
    let is_partial = |len: &usize| tags.iter().any(|tag| tag.as_bytes().starts_with(&bytes[bytes.len() - len..]));
    (1..=longest).rev().find(is_partial).unwrap_or(0)
}
