//! `lily run`: one prompt, one answer.

use std::io::{IsTerminal, Read};
use std::ops::ControlFlow;
use std::process::ExitCode;

use anyhow::Context;
use lily_engine::engine::Engine;
use lily_engine::request::{
    CancelToken, Completion, FinishReason, Logprob, Prompt, Request, SamplingParams, TokenLogprobs,
};
use serde_json::{Value, json};

use crate::flags::RunFlags;
use crate::interrupt::{EXIT_INTERRUPTED, Interrupts};
use crate::prompt;
use crate::terminal::{self, TurnPrinter};

/// Runs the command.
///
/// # Errors
/// One sentence: no prompt, no model, a flag out of range, a failing device, a closed stdout.
pub fn run(flags: &RunFlags) -> anyhow::Result<ExitCode> {
    flags.sampling.check()?;
    let text = prompt::assemble(flags.prompt.as_deref(), piped_stdin()?.as_deref())?;
    let mut engine = crate::open_engine(&crate::engine_options(&flags.model)?)?;
    let prompt = if flags.raw {
        Prompt::Raw(text)
    } else {
        let conversation = &flags.conversation;
        prompt::one_turn(conversation.system.as_deref(), &text, conversation.enable_thinking())
    };
    let request = Request {
        logprobs: flags.logprobs,
        ignore_eos: flags.ignore_eos,
        ..flags.sampling.request(prompt, engine.default_sampling(), crate::random_seed())
    };
    let interrupts = Interrupts::listen()?;
    let guard = interrupts.guard();
    let completion = if flags.json {
        let completion = engine.generate(&request, &guard.token, &mut |_| ControlFlow::Continue(()))?;
        let model = &engine.info().name;
        terminal::write_stdout(&format!("{}\n", report(&completion, &request.sampling, model)))?;
        completion
    } else {
        stream(&mut engine, &request, &guard.token)?
    };
    if crate::ran_out_of_context(&completion, &request) {
        terminal::note("the answer was cut at the end of the context (see --context)");
    }
    let interrupted = completion.finish_reason == FinishReason::Cancelled;
    Ok(if interrupted { EXIT_INTERRUPTED.into() } else { ExitCode::SUCCESS })
}

fn stream(engine: &mut Engine, request: &Request, cancel: &CancelToken) -> anyhow::Result<Completion> {
    let mut printer = TurnPrinter::new();
    match engine.generate(request, cancel, &mut |event| printer.event(&event)) {
        Ok(completion) => {
            printer.finish()?;
            Ok(completion)
        }
        Err(error) => {
            printer.abandon();
            Err(error.into())
        }
    }
}

/// All of stdin when it is no terminal.
fn piped_stdin() -> anyhow::Result<Option<String>> {
    let mut stdin = std::io::stdin().lock();
    if stdin.is_terminal() {
        return Ok(None);
    }
    let mut text = String::new();
    stdin.read_to_string(&mut text).context("stdin")?;
    Ok(Some(text))
}

/// The object of `--json`.
fn report(completion: &Completion, sampling: &SamplingParams, model: &str) -> Value {
    let tool_calls: Vec<Value> =
        completion.tool_calls.iter().map(|call| json!({"name": call.name, "arguments": call.arguments})).collect();
    let mut report = json!({
        "text": completion.content,
        "reasoning": completion.reasoning,
        "tool_calls": tool_calls,
        "tokens": completion.tokens,
        "finish_reason": match completion.finish_reason {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Cancelled => "cancelled",
        },
        "usage": {
            "prompt_tokens": completion.usage.prompt_tokens,
            "cached_tokens": completion.usage.cached_tokens,
            "completion_tokens": completion.usage.completion_tokens,
        },
        "timings_ms": {"prefill": completion.timings.prefill_ms, "decode": completion.timings.decode_ms},
        "model": model,
        "seed": sampling.seed,
    });
    if let Some(tokens) = &completion.logprobs {
        let token = |token: &TokenLogprobs| {
            let mut entry = logprob(&token.token);
            entry["in_text"] = token.in_content.into();
            entry["top"] = token.top.iter().map(logprob).collect();
            entry
        };
        report["logprobs"] = tokens.iter().map(token).collect();
    }
    report
}

fn logprob(token: &Logprob) -> Value {
    let text = String::from_utf8_lossy(&token.bytes);
    json!({"id": token.id, "token": text, "bytes": token.bytes, "logprob": token.logprob})
}
