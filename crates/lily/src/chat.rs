//! `lily chat`: a conversation with history, at a terminal or over a pipe.

use std::io::{self, BufRead, IsTerminal};
use std::process::ExitCode;

use anyhow::Context;
use lily_engine::engine::{Engine, EngineError};
use lily_engine::request::{CancelToken, ChatPrompt, Completion, EventSink, Prompt, Request, SamplingParams};
use rustyline::error::ReadlineError;
use rustyline::history::MemHistory;
use serde_json::{Value, json};

use crate::flags::{ChatFlags, SamplingFlags};
use crate::interrupt::Interrupts;
use crate::prompt;
use crate::terminal::{TurnPrinter, note};

const HELP: &str = "\
/reset           forget the conversation
/think on|off    think before answering, or not
/help            this list
/quit            leave (so does Ctrl-D)
Ctrl-C           stop the answer, keep the conversation
A line that starts with a space is never a command.";

/// What answers; the engine, or a fake in tests.
trait Generate {
    fn generate(
        &mut self,
        request: &Request,
        cancel: &CancelToken,
        sink: &mut EventSink,
    ) -> Result<Completion, EngineError>;
}

impl Generate for Engine {
    fn generate(
        &mut self,
        request: &Request,
        cancel: &CancelToken,
        sink: &mut EventSink,
    ) -> Result<Completion, EngineError> {
        Self::generate(self, request, cancel, sink)
    }
}

/// Runs the command.
///
/// # Errors
/// One sentence: no model, a flag out of range, a closed stdout. A failing turn ends only that turn; over a
/// pipe it also makes the exit code 1.
pub fn chat(flags: &ChatFlags) -> anyhow::Result<ExitCode> {
    flags.sampling.check()?;
    let engine = crate::open_engine(&crate::engine_options(&flags.model)?)?;
    let (info, defaults) = (engine.info().clone(), engine.default_sampling());
    let mut conversation = Conversation::new(engine, defaults, flags);
    let interrupts = Interrupts::listen()?;
    let mut input = Input::open()?;
    if input.is_interactive() {
        note(format_args!("{} on {}; /help lists the commands", info.name, info.device));
    }
    let mut failed = false;
    loop {
        let line = match input.next()? {
            Read::Line(line) => line,
            Read::NotText => {
                note("that line is not UTF-8 text; it was left out");
                failed = true;
                continue;
            }
            Read::End => break,
        };
        match Line::parse(&line) {
            Line::Empty => {}
            Line::Quit => break,
            Line::Help => HELP.lines().for_each(note),
            Line::Reset => conversation.reset(),
            Line::Think(on) => conversation.enable_thinking = Some(on),
            Line::Unknown(command) => note(format_args!("no command {command} (see /help)")),
            Line::Say(text) => failed |= !say(&mut conversation, text, &interrupts)?,
        }
    }
    let code = u8::from(failed && !input.is_interactive());
    Ok(code.into())
}

/// One turn at the terminal; false if it failed.
fn say<G: Generate>(conversation: &mut Conversation<G>, text: &str, interrupts: &Interrupts) -> io::Result<bool> {
    let guard = interrupts.guard();
    let mut printer = TurnPrinter::new();
    match conversation.turn(text, &guard.token, &mut |event| printer.event(&event)) {
        Ok(cut) => {
            printer.finish()?;
            if cut {
                note("the answer was cut at the end of the context (/reset starts anew)");
            }
            Ok(true)
        }
        Err(error) => {
            printer.abandon();
            note(error);
            Ok(false)
        }
    }
}

/// What was said so far, and how to go on.
struct Conversation<G> {
    engine: G,
    defaults: SamplingParams,
    sampling: SamplingFlags,
    system: Option<String>,
    enable_thinking: Option<bool>,
    messages: Vec<Value>,
}

impl<G: Generate> Conversation<G> {
    fn new(engine: G, defaults: SamplingParams, flags: &ChatFlags) -> Self {
        let system = flags.conversation.system.clone();
        let messages = prompt::system_message(system.as_deref());
        let enable_thinking = flags.conversation.enable_thinking();
        Self { engine, defaults, sampling: flags.sampling.clone(), system, enable_thinking, messages }
    }

    fn reset(&mut self) {
        self.messages = prompt::system_message(self.system.as_deref());
    }

    /// Runs one turn and remembers it, a cancelled one with the answer so far; a failed one leaves no trace.
    /// Returns whether the context ended the answer.
    fn turn(&mut self, text: &str, cancel: &CancelToken, sink: &mut EventSink) -> Result<bool, EngineError> {
        let mut messages = self.messages.clone();
        messages.push(prompt::message("user", text));
        let prompt = Prompt::Chat(ChatPrompt {
            messages: messages.clone(),
            enable_thinking: self.enable_thinking,
            ..ChatPrompt::default()
        });
        let request = self.sampling.request(prompt, self.defaults, crate::random_seed());
        let completion = self.engine.generate(&request, cancel, sink)?;
        messages.push(assistant_message(&completion));
        self.messages = messages;
        Ok(crate::ran_out_of_context(&completion, &request))
    }
}

fn assistant_message(completion: &Completion) -> Value {
    let mut message = prompt::message("assistant", &completion.content);
    if !completion.reasoning.is_empty() {
        message["reasoning_content"] = json!(completion.reasoning);
    }
    message
}

/// One line of input.
#[derive(Debug, PartialEq)]
enum Line<'a> {
    Empty,
    Reset,
    Think(bool),
    Help,
    Quit,
    Unknown(&'a str),
    Say(&'a str),
}

impl<'a> Line<'a> {
    /// A command is a slash and letters at the very start: `/etc/hosts` and ` /reset` are words to the model.
    fn parse(line: &'a str) -> Self {
        let text = line.trim();
        if text.is_empty() {
            return Self::Empty;
        }
        let (first, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let is_command = first
            .strip_prefix('/')
            .is_some_and(|name| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphabetic()));
        if !is_command {
            return Self::Say(text);
        }
        match (first, rest.trim()) {
            ("/reset", "") => Self::Reset,
            ("/think", "on") => Self::Think(true),
            ("/think", "off") => Self::Think(false),
            ("/help", "") => Self::Help,
            ("/quit", "") => Self::Quit,
            _ => Self::Unknown(text),
        }
    }
}

/// What came in.
enum Read {
    Line(String),
    /// Bytes that are no UTF-8: one line lost, not the conversation.
    NotText,
    End,
}

/// Where lines come from: an editor at a terminal, bare lines from a pipe.
enum Input {
    Editor(Box<rustyline::Editor<(), MemHistory>>),
    Lines(io::StdinLock<'static>),
}

impl Input {
    fn open() -> anyhow::Result<Self> {
        let stdin = io::stdin().lock();
        if !(stdin.is_terminal() && io::stdout().is_terminal()) {
            return Ok(Self::Lines(stdin));
        }
        drop(stdin);
        // In memory only: what was asked stays on no disk.
        let editor = rustyline::Editor::with_history(rustyline::Config::default(), MemHistory::new());
        Ok(Self::Editor(Box::new(editor.context("terminal")?)))
    }

    fn is_interactive(&self) -> bool {
        matches!(self, Self::Editor(_))
    }

    /// The next line. The end is Ctrl-D, or Ctrl-C at the prompt.
    fn next(&mut self) -> anyhow::Result<Read> {
        match self {
            Self::Editor(editor) => match editor.readline("> ") {
                Ok(line) => {
                    editor.add_history_entry(line.as_str()).context("terminal")?;
                    Ok(Read::Line(line))
                }
                Err(ReadlineError::Eof | ReadlineError::Interrupted) => Ok(Read::End),
                Err(ReadlineError::Io(error)) if error.kind() == io::ErrorKind::InvalidData => Ok(Read::NotText),
                Err(error) => Err(error).context("terminal"),
            },
            Self::Lines(stdin) => {
                let mut line = Vec::new();
                if stdin.read_until(b'\n', &mut line).context("stdin")? == 0 {
                    return Ok(Read::End);
                }
                Ok(String::from_utf8(line).map_or(Read::NotText, Read::Line))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lily_engine::request::{Event, FinishReason, RequestError, Timings, Usage};
    use std::ops::ControlFlow;

    /// Answers with the number of messages it was given, or fails on "fail".
    struct Fake;

    impl Generate for Fake {
        fn generate(
            &mut self,
            request: &Request,
            cancel: &CancelToken,
            sink: &mut EventSink,
        ) -> Result<Completion, EngineError> {
            let Prompt::Chat(chat) = &request.prompt else { panic!("chat sends messages") };
            if chat.messages.last().is_some_and(|last| last["content"] == "fail") {
                return Err(RequestError::Template("no".into()).into());
            }
            let content = chat.messages.len().to_string();
            let _ = sink(Event::Content(content.clone()));
            let cancelled = cancel.is_cancelled();
            Ok(Completion {
                content,
                reasoning: if chat.enable_thinking == Some(false) { String::new() } else { "hm".into() },
                tool_calls: vec![],
                tokens: vec![1],
                logprobs: None,
                prompt_logprobs: None,
                finish_reason: if cancelled { FinishReason::Cancelled } else { FinishReason::Length },
                usage: Usage::default(),
                timings: Timings::default(),
            })
        }
    }

    fn conversation(system: Option<&str>) -> Conversation<Fake> {
        Conversation {
            engine: Fake,
            defaults: SamplingParams::GREEDY,
            sampling: SamplingFlags::default(),
            system: system.map(str::to_owned),
            enable_thinking: None,
            messages: prompt::system_message(system),
        }
    }

    fn ignore(_: Event) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    #[test]
    fn turns_go_into_the_history_with_their_reasoning() {
        let mut chat = conversation(Some("Be brief."));
        let cut = chat.turn("Hi", &CancelToken::default(), &mut ignore).unwrap();
        assert!(cut, "length without --max-tokens is the end of the context");
        assert_eq!(
            chat.messages[1..],
            [
                json!({"role": "user", "content": "Hi"}),
                json!({"role": "assistant", "content": "2", "reasoning_content": "hm"}),
            ]
        );
        chat.enable_thinking = Some(false);
        chat.turn("Again", &CancelToken::default(), &mut ignore).unwrap();
        assert_eq!(chat.messages[4], json!({"role": "assistant", "content": "4"}));
        chat.reset();
        assert_eq!(chat.messages, [json!({"role": "system", "content": "Be brief."})]);
    }

    #[test]
    fn a_failed_turn_leaves_no_trace_a_cancelled_one_stays() {
        let mut chat = conversation(None);
        chat.turn("Hi", &CancelToken::default(), &mut ignore).unwrap();
        let before = chat.messages.clone();
        assert!(chat.turn("fail", &CancelToken::default(), &mut ignore).is_err());
        assert_eq!(chat.messages, before);
        let cancel = CancelToken::default();
        cancel.cancel();
        chat.turn("stop", &cancel, &mut ignore).unwrap();
        assert_eq!(chat.messages.len(), before.len() + 2);
    }

    #[test]
    fn only_a_slash_word_at_the_start_is_a_command() {
        for (line, want) in [
            ("  \n", Line::Empty),
            ("/reset\n", Line::Reset),
            ("/think on", Line::Think(true)),
            ("/think  off ", Line::Think(false)),
            ("/think", Line::Unknown("/think")),
            ("/reset now", Line::Unknown("/reset now")),
            ("/nope", Line::Unknown("/nope")),
            ("/help", Line::Help),
            ("/quit", Line::Quit),
            ("/etc/hosts is what?", Line::Say("/etc/hosts is what?")),
            (" /reset", Line::Say("/reset")),
            ("/", Line::Say("/")),
            ("hello\n", Line::Say("hello")),
        ] {
            assert_eq!(Line::parse(line), want, "{line:?}");
        }
    }
}
