//! What a person or a pipe sees: the answer on stdout, everything else on stderr. The one place that writes to
//! either, so that a closed pipe is an error to handle and never a panic.

pub mod progress;

use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;

use lily_engine::request::Event;

use crate::flags;

/// A line for the person at the terminal. Nothing is done about a closed stderr: nobody is left to tell.
pub fn note(line: impl std::fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "lily: {line}");
}

/// Writes all of `text` to stdout.
///
/// # Errors
/// Those of the write; `BrokenPipe` when the reader has left.
pub fn write_stdout(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Streams one turn: content to `answer`, reasoning to `thoughts`. Keeps the first failed write and asks the
/// engine to stop there.
pub struct TurnPrinter<A, T> {
    answer: A,
    thoughts: Option<T>,
    dim: bool,
    thinking: bool,
    began: bool,
    ends_in_newline: bool,
    failed: Option<io::Error>,
}

impl TurnPrinter<io::Stdout, io::Stderr> {
    /// Content to stdout; reasoning, dimmed, to stderr when that is a terminal.
    pub fn new() -> Self {
        let thoughts = io::stderr().is_terminal().then(io::stderr);
        Self::to(io::stdout(), thoughts, !flags::plain_output())
    }
}

impl<A: Write, T: Write> TurnPrinter<A, T> {
    /// Content to `answer`, reasoning to `thoughts` if given, `dim` with escape sequences around it.
    pub fn to(answer: A, thoughts: Option<T>, dim: bool) -> Self {
        Self { answer, thoughts, dim, thinking: false, began: false, ends_in_newline: false, failed: None }
    }

    /// Prints one event; `Break` once the answer cannot be written.
    pub fn event(&mut self, event: &Event) -> ControlFlow<()> {
        match event {
            Event::Reasoning(text) => self.reasoning(text),
            Event::Content(text) => return self.content(text),
            Event::Start { .. } | Event::Prefill { .. } | Event::Logprobs(_) | Event::ToolCall(_) => {}
        }
        ControlFlow::Continue(())
    }

    /// Ends the turn with a newline.
    ///
    /// # Errors
    /// The first write to the answer that failed.
    pub fn finish(mut self) -> io::Result<()> {
        self.end_reasoning("\n");
        if let Some(error) = self.failed {
            return Err(error);
        }
        if !self.ends_in_newline {
            self.answer.write_all(b"\n")?;
        }
        self.answer.flush()
    }

    /// Ends a turn that failed: what was printed gets its newline, an answer that never began gets nothing.
    pub fn abandon(mut self) {
        self.end_reasoning("\n");
        if self.began && !self.ends_in_newline {
            let _ = self.answer.write_all(b"\n");
        }
    }

    fn reasoning(&mut self, text: &str) {
        let Some(out) = &mut self.thoughts else { return };
        self.thinking = true;
        // Each piece resets what it set: an abrupt end leaves the terminal as it was.
        let (on, off) = if self.dim { ("\x1b[2m", "\x1b[0m") } else { ("", "") };
        let _ = write!(out, "{on}{text}{off}").and_then(|()| out.flush());
    }

    fn end_reasoning(&mut self, gap: &str) {
        if let (true, Some(out)) = (std::mem::take(&mut self.thinking), &mut self.thoughts) {
            let _ = out.write_all(gap.as_bytes()).and_then(|()| out.flush());
        }
    }

    fn content(&mut self, text: &str) -> ControlFlow<()> {
        if self.failed.is_some() {
            return ControlFlow::Break(());
        }
        if text.is_empty() {
            return ControlFlow::Continue(());
        }
        self.end_reasoning("\n\n");
        self.began = true;
        self.ends_in_newline = text.ends_with('\n');
        match self.answer.write_all(text.as_bytes()).and_then(|()| self.answer.flush()) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                self.failed = Some(error);
                ControlFlow::Break(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn print(events: &[Event], thoughts: bool, dim: bool) -> (String, String) {
        let (mut answer, mut aside) = (Vec::new(), Vec::new());
        let mut printer = TurnPrinter::to(&mut answer, thoughts.then_some(&mut aside), dim);
        for event in events {
            assert_eq!(printer.event(event), ControlFlow::Continue(()));
        }
        printer.finish().unwrap();
        (String::from_utf8(answer).unwrap(), String::from_utf8(aside).unwrap())
    }

    fn turn() -> [Event; 4] {
        [
            Event::Start { prompt_tokens: 3, cached_tokens: 0 },
            Event::Reasoning("hm".into()),
            Event::Content("Par".into()),
            Event::Content("is".into()),
        ]
    }

    #[test]
    fn the_answer_and_one_newline_go_to_stdout() {
        assert_eq!(print(&turn(), false, true), ("Paris\n".into(), String::new()));
        assert_eq!(print(&[Event::Content("a\n".into())], false, false).0, "a\n");
        assert_eq!(print(&[], false, false).0, "\n");
    }

    #[test]
    fn reasoning_goes_aside_and_leaves_no_style_behind() {
        assert_eq!(print(&turn(), true, true).1, "\x1b[2mhm\x1b[0m\n\n");
        assert_eq!(print(&turn(), true, false).1, "hm\n\n");
        assert_eq!(print(&turn()[..2], true, false).1, "hm\n");
    }

    #[test]
    fn a_closed_answer_stops_the_turn_and_is_reported() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut printer = TurnPrinter::to(Closed, None::<Vec<u8>>, false);
        assert_eq!(printer.event(&Event::Content("a".into())), ControlFlow::Break(()));
        assert_eq!(printer.event(&Event::Content("b".into())), ControlFlow::Break(()));
        assert_eq!(printer.finish().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
