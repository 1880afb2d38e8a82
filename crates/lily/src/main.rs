//! The `lily` binary: terminal, sockets and clock around `lily-engine`. Each command is one module; this file
//! opens the engine for them and turns errors into one sentence and an exit code.

mod bench;
mod chat;
mod config;
mod flags;
mod inspect;
mod interrupt;
mod pages;
mod plan;
mod prompt;
mod pull;
mod run;
mod selftest;
mod serve;
mod terminal;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::path::Path;
use std::process::ExitCode;

use lily_engine::engine::{Engine, EngineError, EngineOptions};
use lily_engine::request::{Completion, FinishReason, Request};

use flags::{Command, ModelFlags};
use terminal::note;

/// The exit code of a program whose stdout was closed, as a shell reports SIGPIPE.
const EXIT_CLOSED_STDOUT: u8 = 141;

fn main() -> ExitCode {
    let result = flags::load().and_then(|loaded| {
        if let Some(model) = loaded.model {
            note(model);
        }
        execute(&loaded.cli.command, loaded.cli.config.as_deref())
    });
    match result {
        Ok(code) => code,
        Err(error) if is_closed_pipe(&error) => EXIT_CLOSED_STDOUT.into(),
        Err(error) => {
            note(format_args!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn execute(command: &Command, config: Option<&Path>) -> anyhow::Result<ExitCode> {
    match command {
        Command::Chat(flags) => chat::chat(flags),
        Command::Run(flags) => run::run(flags),
        Command::Plan(flags) => plan::plan(flags),
        Command::Inspect(flags) => inspect::inspect(flags),
        Command::Serve(flags) => serve::serve(flags),
        Command::Pull(flags) => pull::pull(flags),
        Command::Bench(flags) => bench::bench(flags),
        Command::Selftest(flags) => selftest::selftest(flags),
        Command::Config(flags) => config::config(flags, config),
        Command::Completions(flags) => pages::completions(flags),
        Command::Man(flags) => pages::man(flags),
    }
}

/// What to open, with one line on stderr if the flags did not name the model.
///
/// # Errors
/// A repository is named that is not in the cache.
fn engine_options(flags: &ModelFlags) -> anyhow::Result<EngineOptions> {
    let (options, why) = flags.engine_options()?;
    if let Some(why) = why {
        note(why);
    }
    Ok(options)
}

/// Loads the model and passes its warnings on.
///
/// # Errors
/// One sentence naming the file and the field.
fn open_engine(options: &EngineOptions) -> Result<Engine, EngineError> {
    let engine = Engine::open(options)?;
    for warning in &engine.info().warnings {
        note(format_args!("warning: {warning}"));
    }
    Ok(engine)
}

/// A seed for those who gave none. 53 bits, so that every JSON reader gets it back exactly.
fn random_seed() -> u64 {
    // The standard library's hash keys come from the system's random source.
    RandomState::new().build_hasher().finish() >> 11
}

/// Whether the answer was cut although nobody asked for a limit.
fn ran_out_of_context(completion: &Completion, request: &Request) -> bool {
    completion.finish_reason == FinishReason::Length && request.max_tokens.is_none()
}

/// Someone closed the pipe we wrote to; nothing is left to say, and nobody to say it to.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let broken = |cause: &io::Error| cause.kind() == io::ErrorKind::BrokenPipe;
    error.chain().any(|cause| cause.downcast_ref::<io::Error>().is_some_and(broken))
}
