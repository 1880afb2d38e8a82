//! Looks for the tags that change what a grammar allows, in the bytes of tokens as they come.

use super::super::arguments::Tools;
use super::super::{FUNCTION_START, THINK_END, TOOL_CALL_START};

/// Longest opening of a call that is looked for.
const MOST: usize = 300;

/// The end of the text so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Scan {
    tail: Vec<u8>,
}

impl Scan {
    /// Takes a token's bytes. What comes after `</think>`, if they complete it.
    pub(super) fn closes_thinking(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        self.push(bytes);
        let at = find(&self.tail, THINK_END)?;
        Some(self.tail[at + THINK_END.len()..].to_vec())
    }

    /// Takes a token's bytes. The text from the tag on that opens a call, if they complete it: `<tool_call>`, or
    /// `<function=` with the name of a tool.
    pub(super) fn opens_call(&mut self, bytes: &[u8], tools: &Tools) -> Option<Vec<u8>> {
        self.push(bytes);
        if let Some(at) = find(&self.tail, TOOL_CALL_START) {
            return Some(self.tail.split_off(at));
        }
        while let Some(at) = find(&self.tail, FUNCTION_START) {
            let name = &self.tail[at + FUNCTION_START.len()..];
            let len = name.iter().position(|byte| *byte == b'>' || *byte == b'\n')?;
            if std::str::from_utf8(&name[..len]).is_ok_and(|name| tools.has(name)) {
                let mut opening = self.tail.split_off(at);
                let end = FUNCTION_START.len() + len;
                // Where the model forgot the `>`, its line ends the name.
                if opening[end] == b'\n' {
                    opening.insert(end, b'>');
                }
                return Some(opening);
            }
            // Prose: what follows it may still open a call.
            self.tail.drain(..at + FUNCTION_START.len());
        }
        None
    }

    fn push(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
        let old = self.tail.len().saturating_sub(MOST + bytes.len());
        self.tail.drain(..old);
    }
}

fn find(text: &[u8], tag: &str) -> Option<usize> {
    text.windows(tag.len()).position(|window| window == tag.as_bytes())
}
