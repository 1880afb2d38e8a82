//! `lily selftest`: is this device right, on this machine? Prints a report that can be pasted into an issue.

use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::Instant;

use lily_engine::engine::{Engine, EngineOptions, ModelSource};
use lily_engine::report::{KernelReport, check_kernels, device};
use lily_engine::request::{CancelToken, ChatPrompt, Prompt, Request, SamplingParams};

use crate::flags::{self, SelftestFlags};
use crate::terminal;

/// A question whose answer the built-in model knows for sure.
const QUESTION: &str = "What is the capital of France?";
const ANSWER: &str = "The capital of France is Paris.";

/// Runs the command; the exit code says whether all was right.
///
/// # Errors
/// One sentence: the device cannot be opened; a closed stdout.
pub fn selftest(flags: &SelftestFlags) -> anyhow::Result<ExitCode> {
    let start = Instant::now();
    terminal::write_stdout(&format!("lily {}, {}\n", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH))?;
    let (mut cases, mut failed) = (0, 0);
    for report in check_kernels(&flags.device)? {
        let report = report?;
        cases += report.cases;
        failed += report.failures.len();
        terminal::write_stdout(&line(&report))?;
    }
    terminal::write_stdout("\n")?;
    terminal::write_stdout(&device(&flags.device)?)?;
    let (right, text) = answer(&flags.device)?;
    failed += usize::from(!right);
    terminal::write_stdout(&text)?;
    let seconds = start.elapsed().as_secs_f64();
    let verdict = if failed == 0 { "all right" } else { "NOT RIGHT" };
    terminal::write_stdout(&format!("{cases} cases and one answer, {failed} wrong, {seconds:.1} s: {verdict}\n"))?;
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// One op, and what went wrong with it.
fn line(report: &KernelReport) -> String {
    let KernelReport { op, cases, unsupported, worst, timing, failures } = report;
    let mut text = format!("{op:<20} {cases:>4} cases, {} wrong, largest error {worst:.1e}", failures.len());
    if let Some((count, reason)) = unsupported {
        // Writing to a string cannot fail.
        let _ = write!(text, "; {count} not run: {reason}");
    }
    if let Some(time) = timing {
        let (us, gb) = (time.seconds * 1e6, time.bytes as f64 / time.seconds / 1e9);
        let _ = write!(text, "; {us:.0} us for its largest, {gb:.2} GB/s");
    }
    text.push('\n');
    for failure in failures.iter().take(3) {
        let _ = writeln!(text, "  {failure}");
    }
    text
}

/// The built-in model on the device, with its speed.
fn answer(device: &str) -> anyhow::Result<(bool, String)> {
    let mut options = EngineOptions::new(ModelSource::Embedded(flags::DEMO));
    device.clone_into(&mut options.device);
    let mut engine = Engine::open(&options)?;
    let messages = vec![serde_json::json!({"role": "user", "content": QUESTION})];
    let chat = ChatPrompt { messages, enable_thinking: Some(false), ..ChatPrompt::default() };
    let request = Request::new(Prompt::Chat(chat), SamplingParams::GREEDY);
    let done = engine.generate(&request, &CancelToken::default(), &mut |_| ControlFlow::Continue(()))?;
    let right = done.content == ANSWER;
    let text = format!("{} on {}: {QUESTION} {}\n", engine.info().name, engine.info().device, done.content);
    Ok((right, text))
}
