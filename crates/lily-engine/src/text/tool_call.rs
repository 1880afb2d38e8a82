//! Reads one tool call in Qwen's XML form out of a growing text. Decides only what later text cannot change, so
//! the result does not depend on how the text was cut. Knows no tools and no types.

use super::{FUNCTION_START, TOOL_CALL_END};

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
    /// Begins at `start`; no end before `searched`.
    Value {
        start: usize,
        searched: usize,
    },
    Close,
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
                Stage::Value { start, searched } => self.value(text, start, searched),
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
            self.stage = Stage::Value { start: self.at, searched: self.at };
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
    /// that it may hold code which looks like tags.
    fn value(&mut self, text: &str, start: usize, searched: usize) -> Option<Progress> {
        let rest = &text[searched..];
        let (tag, at) = match (rest.find(PARAMETER_END), rest.find(FUNCTION_END)) {
            (Some(parameter), function) if function.is_none_or(|function| parameter < function) => {
                (PARAMETER_END, searched + parameter)
            }
            (_, Some(function)) => (FUNCTION_END, searched + function),
            (_, None) => {
                // The end of the text may hold the beginning of a tag.
                let mut searched = text.len().saturating_sub(PARAMETER_END.len() - 1).max(searched);
                while !text.is_char_boundary(searched) {
                    searched -= 1;
                }
                self.stage = Stage::Value { start, searched };
                return Some(Progress::Incomplete);
            }
        };
        self.stage = Stage::Value { start, searched: at };
        let after = at + tag.len();
        if tag == FUNCTION_END {
            // The whole call ends while the value is open: the model forgot `</parameter>`.
            return match find_tag(text, after, &[TOOL_CALL_END]) {
                Found::Tag(..) => Some(Progress::Malformed),
                Found::Partial => Some(Progress::Incomplete),
                Found::Other => {
                    self.stage = Stage::Value { start, searched: after };
                    None
                }
            };
        }
        match find_tag(text, after, &[PARAMETER_START, FUNCTION_END]) {
            Found::Tag(..) => {
                let value = &text[start..at];
                let value = value.strip_prefix('\n').unwrap_or(value);
                let value = value.strip_suffix('\n').unwrap_or(value);
                if let Some((_, slot)) = self.calls.last_mut().and_then(|call| call.parameters.last_mut()) {
                    value.clone_into(slot);
                }
                (self.at, self.stage) = (after, Stage::ParameterOrEnd);
            }
            Found::Partial => return Some(Progress::Incomplete),
            Found::Other => self.stage = Stage::Value { start, searched: after },
        }
        None
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
