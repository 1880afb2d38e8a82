//! Keeps apart what a chat template wrote from what the caller wrote.
//!
//! Before rendering, a guard character goes into the caller's strings wherever a control token could begin; after
//! rendering, only unguarded spellings are control tokens, and the guards are taken out again. So `<|im_end|>`
//! in a message, or put together from two content parts, stays text.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;

use minijinja::Value as JinjaValue;
use serde_json::{Map, Value};

use super::{THINK_END, THINK_START, TextError};

const RESPONSE_START: &str = "<tool_response>";
const RESPONSE_END: &str = "</tool_response>";

/// Two characters that the caller's text does not contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Guards {
    /// Follows the first character of a spelling.
    inner: char,
    /// Stands beside a spelling that the template has to see whole.
    outer: char,
}

/// How much of the caller's text is guarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Guarding {
    /// Every spelling.
    All,
    /// Every spelling but the tags that templates cut messages at: an assistant's think block, which they take
    /// apart and write anew, and the tool-response frame of a user's message, which they only look for.
    AllButDelimiters,
}

/// Puts guards into strings on their way into the template.
#[derive(Debug)]
pub(super) struct Guard<'a> {
    /// `None` guards nothing: the text that Hugging Face renders.
    pub guards: Option<(Guards, Guarding)>,
    /// First characters of the control tokens.
    pub starts: &'a [char],
}

impl Guards {
    /// Picks noncharacters, or private-use characters if the text holds many noncharacters itself.
    /// `None` if no string holds one of `starts`: nothing to guard.
    pub(super) fn for_values<'a>(
        values: impl Iterator<Item = &'a Value>,
        starts: &[char],
    ) -> Result<Option<Self>, TextError> {
        let mut present = HashSet::new();
        let mut needed = false;
        for value in values {
            each_char(value, &mut |c| {
                needed |= starts.contains(&c);
                if matches!(c, '\u{fdd0}'..='\u{fdef}' | '\u{f0000}'..) {
                    present.insert(c);
                }
            });
        }
        if !needed {
            return Ok(None);
        }
        let candidates = ('\u{fdd0}'..='\u{fdef}').chain('\u{f0000}'..='\u{10fffd}');
        let mut free = candidates.filter(|c| !present.contains(c));
        match (free.next(), free.next()) {
            (Some(inner), Some(outer)) => Ok(Some(Self { inner, outer })),
            _ => Err(TextError::Render("the messages use every private-use character of Unicode".into())),
        }
    }

    /// Whether the spelling at `range` is the caller's though it is whole.
    pub(super) fn beside(self, text: &str, range: Range<usize>) -> bool {
        text[range.end..].starts_with(self.outer) || text[..range.start].ends_with(self.outer)
    }

    /// `text` without guards.
    pub(super) fn remove(self, text: &str) -> Cow<'_, str> {
        let is_guard = |c| c == self.inner || c == self.outer;
        if text.contains(is_guard) { text.replace(is_guard, "").into() } else { text.into() }
    }
}

impl Guard<'_> {
    /// A message: like `value`, with its delimiters left alone where `guarding` says so.
    pub(super) fn message(&self, message: &Value) -> JinjaValue {
        let role = message.get("role").and_then(Value::as_str);
        let (Some((guards, Guarding::AllButDelimiters)), Some(object)) = (self.guards, message.as_object()) else {
            return self.value(message);
        };
        let entries = object.iter().map(|(key, value)| {
            let value = match (key.as_str(), value, role) {
                ("content", Value::String(text), Some("assistant")) => self.assistant_content(text).into(),
                ("content", Value::String(text), Some("user")) => self.user_content(text, guards.outer).into(),
                _ => self.value(value),
            };
            (self.text(key), value)
        });
        JinjaValue::from_pairs(entries)
    }

    /// Any JSON value; object keys are guarded too.
    pub(super) fn value(&self, value: &Value) -> JinjaValue {
        match value {
            Value::Null => JinjaValue::from(()),
            Value::Bool(b) => (*b).into(),
            Value::Number(n) => match (n.as_u64(), n.as_i64()) {
                (Some(n), _) => n.into(),
                (None, Some(n)) => n.into(),
                (None, None) => n.as_f64().unwrap_or(f64::NAN).into(),
            },
            Value::String(text) => self.text(text).into(),
            Value::Array(items) => items.iter().map(|item| self.value(item)).collect::<Vec<_>>().into(),
            Value::Object(object) => self.object(object),
        }
    }

    fn object(&self, object: &Map<String, Value>) -> JinjaValue {
        JinjaValue::from_pairs(object.iter().map(|(key, value)| (self.text(key), self.value(value))))
    }

    fn text(&self, text: &str) -> String {
        self.text_except(text, &[])
    }

    /// Guards `text` except for the spellings that begin at the byte offsets `whole`.
    fn text_except(&self, text: &str, whole: &[usize]) -> String {
        let Some((guards, _)) = self.guards.filter(|_| text.contains(self.starts)) else {
            return text.to_owned();
        };
        let mut guarded = String::with_capacity(text.len() + 16);
        for (at, c) in text.char_indices() {
            guarded.push(c);
            if self.starts.contains(&c) && !whole.contains(&at) {
                guarded.push(guards.inner);
            }
        }
        guarded
    }

    /// Leaves alone the tags of the think block that a template would cut at: it splits at the first and the
    /// last `</think>` and takes the reasoning from the last `<think>` before them.
    fn assistant_content(&self, text: &str) -> String {
        let (Some(first_end), Some(last_end)) = (text.find(THINK_END), text.rfind(THINK_END)) else {
            return self.text(text);
        };
        let start = text[..first_end].rfind(THINK_START).unwrap_or(first_end);
        self.text_except(text, &[start, first_end, last_end])
    }

    /// Marks the frame of a message that is wholly a tool response from outside its tags.
    fn user_content(&self, text: &str, outer: char) -> String {
        let inside = text.trim().strip_prefix(RESPONSE_START).and_then(|rest| rest.strip_suffix(RESPONSE_END));
        let Some(inside) = inside else {
            return self.text(text);
        };
        format!("{RESPONSE_START}{outer}{}{outer}{RESPONSE_END}", self.text(inside))
    }
}

fn each_char(value: &Value, see: &mut impl FnMut(char)) {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
        Value::String(text) => text.chars().for_each(see),
        Value::Array(items) => items.iter().for_each(|item| each_char(item, see)),
        Value::Object(object) => {
            for (key, item) in object {
                key.chars().for_each(&mut *see);
                each_char(item, see);
            }
        }
    }
}
