//! `lily bench`: how fast a model runs here. Prompts are random token ids that never repeat, so that nothing is reused
//! from one round to the next; prefill, decode and the first token are told apart.

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{bail, ensure};
use lily_engine::engine::{Engine, EngineOptions, Precision};
use lily_engine::request::{Completion, FinishReason, Prompt, Request, SamplingParams};
use serde_json::{Value, json};

use crate::flags::BenchFlags;
use crate::interrupt::{EXIT_INTERRUPTED, Guard, Interrupts};
use crate::terminal::progress::Rounds;
use crate::terminal::write_stdout;

/// Runs the command.
///
/// # Errors
/// One sentence: no model, lengths that do not fit its context, a failing device, a closed stdout.
pub fn bench(flags: &BenchFlags) -> anyhow::Result<ExitCode> {
    let options = crate::engine_options(&flags.model)?;
    let started = Instant::now();
    let mut engine = crate::open_engine(&options)?;
    let load_ms = started.elapsed().as_secs_f64() * 1e3;
    check_room(flags, engine.info().context_length)?;
    let interrupts = Interrupts::listen()?;
    let guard = interrupts.guard();
    let mut prompts = Prompts::new(engine.codec().tokenizer().vocab_size().min(engine.info().vocab_size));
    let mut rows = Vec::new();
    let each = (flags.rounds.get() as u64).saturating_add(1);
    let progress = Rounds::new(each.saturating_mul(flags.prompt_tokens.len() as u64));
    for length in flags.prompt_tokens.iter().map(|length| length.get()) {
        let Some(row) = measure(&mut engine, flags, length, &mut prompts, (&guard, &progress))? else {
            return Ok(EXIT_INTERRUPTED.into());
        };
        rows.push(row);
    }
    drop(progress);
    let report = Report { flags, options: &options, engine: &engine, load_ms, rows };
    write_stdout(&if flags.json { format!("{}\n", report.json()) } else { report.table() })?;
    Ok(ExitCode::SUCCESS)
}

/// Before a minute of rounds is lost, and before a length beyond all memory is drawn.
fn check_room(flags: &BenchFlags, context_length: usize) -> anyhow::Result<()> {
    let tokens = flags.tokens.get();
    for length in flags.prompt_tokens.iter().map(|length| length.get()) {
        let fits = length.checked_add(tokens).is_some_and(|sum| sum <= context_length);
        ensure!(fits, "--prompt-tokens {length} with --tokens {tokens} is longer than the context of {context_length}");
    }
    Ok(())
}

/// All rounds of one prompt length.
struct Row {
    prompt_tokens: usize,
    prefill_tps: Spread,
    first_token_ms: Spread,
    /// Absent if only one token is decoded: it comes from the prompt's last logits, without a step.
    decode_tps: Option<Spread>,
}

/// Measures one prompt length; nothing if the user stopped it.
fn measure(
    engine: &mut Engine,
    flags: &BenchFlags,
    length: usize,
    prompts: &mut Prompts,
    (guard, progress): (&Guard, &Rounds),
) -> anyhow::Result<Option<Row>> {
    let (mut prefill, mut first, mut decode) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=flags.rounds.get() {
        progress.begin(round_words(length, round, flags.rounds.get()));
        let request = Request {
            max_tokens: Some(flags.tokens.get()),
            ignore_eos: true,
            ..Request::new(Prompt::Tokens(prompts.next(length)), SamplingParams::GREEDY)
        };
        let done = engine.generate(&request, &guard.token, &mut |_| ControlFlow::Continue(()))?;
        if done.finish_reason == FinishReason::Cancelled {
            return Ok(None);
        }
        let steps = decode_steps(&done)?;
        progress.done();
        // The first round warms up: plans are recorded, pages of the weights come into memory.
        if round == 0 {
            continue;
        }
        prefill.push(length as f64 / done.timings.prefill_ms * 1e3);
        first.push(done.timings.first_token_ms);
        if steps > 0 {
            let decode_ms = done.timings.prefill_ms + done.timings.decode_ms - done.timings.first_token_ms;
            decode.push(steps as f64 / decode_ms * 1e3);
        }
    }
    let spread = |values: &[f64]| Spread::of(values);
    let (Some(prefill_tps), Some(first_token_ms)) = (spread(&prefill), spread(&first)) else {
        bail!("no round was measured");
    };
    Ok(Some(Row { prompt_tokens: length, prefill_tps, first_token_ms, decode_tps: spread(&decode) }))
}

/// Round 0 warms up.
fn round_words(length: usize, round: usize, rounds: usize) -> String {
    match round {
        0 => format!("{length} prompt tokens: warming up"),
        _ => format!("{length} prompt tokens: round {round} of {rounds}"),
    }
}

/// Steps behind the first token. Anything reused would make the numbers lies.
fn decode_steps(done: &Completion) -> anyhow::Result<usize> {
    ensure!(done.usage.cached_tokens == 0, "{} prompt tokens were reused: not a measurement", done.usage.cached_tokens);
    Ok(done.usage.completion_tokens.saturating_sub(1))
}

/// Random prompts, the same in every run of the program.
struct Prompts {
    vocab: u64,
    drawn: u64,
    first_ids: HashSet<u32>,
}

impl Prompts {
    fn new(vocab_size: usize) -> Self {
        Self { vocab: vocab_size as u64, drawn: 0, first_ids: HashSet::new() }
    }

    /// A prompt that begins with an id that no earlier one began with, as long as there are such ids.
    fn next(&mut self, length: usize) -> Vec<u32> {
        let mut ids: Vec<u32> = (0..length).map(|_| self.draw()).collect();
        let left = (self.first_ids.len() as u64) < self.vocab;
        while left && !self.first_ids.insert(ids[0]) {
            ids[0] = self.draw();
        }
        ids
    }

    /// The finalizer of SplitMix64 over a counter.
    fn draw(&mut self) -> u32 {
        self.drawn += 1;
        let mut x = self.drawn.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % self.vocab) as u32 // below the vocabulary, whose ids are u32
    }
}

/// What several rounds gave.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let half = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 { sorted[half] } else { f64::midpoint(sorted[half - 1], sorted[half]) };
        Some(Self { median, min, max })
    }

    fn json(self) -> Value {
        json!({"median": thousandths(self.median), "min": thousandths(self.min), "max": thousandths(self.max)})
    }

    fn words(self) -> String {
        format!("{:.1} ({:.1}–{:.1})", self.median, self.min, self.max)
    }
}

/// Digits beyond these are noise.
fn thousandths(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

/// Everything that was found out.
struct Report<'a> {
    flags: &'a BenchFlags,
    options: &'a EngineOptions,
    engine: &'a Engine,
    load_ms: f64,
    rows: Vec<Row>,
}

impl Report<'_> {
    fn precision(&self) -> &'static str {
        match self.options.precision {
            Precision::Fast | Precision::Half => "fast",
            Precision::Exact => "exact",
        }
    }

    /// Those given, else the cores this process may use, as the device decides it too.
    fn threads(&self) -> usize {
        self.options.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, NonZeroUsize::get))
    }

    /// The object of `--json`. Its names are documented in the README; new ones may come, none may change.
    fn json(&self) -> Value {
        let info = self.engine.info();
        let memory = Memory::now();
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|row| {
                json!({
                    "prompt_tokens": row.prompt_tokens,
                    "prefill_tps": row.prefill_tps.json(),
                    "first_token_ms": row.first_token_ms.json(),
                    "decode_tps": row.decode_tps.map(Spread::json),
                })
            })
            .collect();
        json!({
            "model": info.name,
            "weight_bytes": info.weight_bytes,
            "device": info.device,
            "threads": self.threads(),
            "precision": self.precision(),
            "context_length": info.context_length,
            "prefill_chunk": self.options.prefill_chunk,
            "tokens": self.flags.tokens.get(),
            "rounds": self.flags.rounds.get(),
            "load_ms": thousandths(self.load_ms),
            "results": rows,
            "peak_resident_bytes": memory.peak_resident,
            "anonymous_bytes": memory.anonymous,
            "load_average": load_average(),
            "version": env!("CARGO_PKG_VERSION"),
        })
    }

    fn table(&self) -> String {
        let info = self.engine.info();
        let mut text = format!("{} on {}, {} precision\n", info.name, info.device, self.precision());
        let mut facts = vec![format!("loaded in {:.0} ms", self.load_ms)];
        let memory = Memory::now();
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        facts.extend(memory.peak_resident.map(|bytes| format!("peak resident {:.0} MiB", mib(bytes))));
        facts.extend(memory.anonymous.map(|bytes| format!("anonymous {:.0} MiB", mib(bytes))));
        facts.extend(load_average().map(|load| format!("load average {load:.2}")));
        text += &format!("{}\n", facts.join(", "));
        let (rounds, tokens) = (self.flags.rounds, self.flags.tokens);
        text += &format!("median (min–max) of {rounds} rounds; decode of {tokens} tokens behind the prompt\n\n");
        text +=
            &format!("{:>8}  {:<26}  {:<26}  {}\n", "prompt", "prefill tokens/s", "decode tokens/s", "first token ms");
        for row in &self.rows {
            let decode = row.decode_tps.map_or("–".to_owned(), Spread::words);
            let (prefill, first) = (row.prefill_tps.words(), row.first_token_ms.words());
            text += &format!("{:>8}  {prefill:<26}  {decode:<26}  {first}\n", row.prompt_tokens);
        }
        text
    }
}

/// Bytes of this process, where the system has a file that tells.
#[derive(Debug, Default, PartialEq)]
struct Memory {
    /// The most that was ever resident, mapped weights included.
    peak_resident: Option<u64>,
    /// What belongs to no file, now.
    anonymous: Option<u64>,
}

impl Memory {
    fn now() -> Self {
        std::fs::read_to_string("/proc/self/status").map(|text| Self::parse(&text)).unwrap_or_default()
    }

    fn parse(status: &str) -> Self {
        let bytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
            kib.checked_mul(1024)
        };
        Self { peak_resident: bytes("VmHWM"), anonymous: bytes("RssAnon") }
    }
}

/// Of the last minute: what else this machine did.
fn load_average() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads_are_sorted() {
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]), Some(Spread { median: 2.0, min: 1.0, max: 3.0 }));
        assert_eq!(Spread::of(&[4.0, 1.0]).map(|spread| spread.median), Some(2.5));
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn prompts_are_the_same_in_every_run_and_never_begin_alike() {
        let (mut one, mut two) = (Prompts::new(300), Prompts::new(300));
        let mut firsts = HashSet::new();
        for _ in 0..300 {
            let ids = one.next(5);
            assert_eq!(ids, two.next(5));
            assert!(ids.iter().all(|&id| id < 300) && firsts.insert(ids[0]));
        }
        assert_eq!(one.next(2).len(), 2);
    }

    #[test]
    fn memory_comes_from_the_status_file_or_not_at_all() {
        let status = "Name:\tlily\nVmHWM:\t    2048 kB\nRssAnon:\t       4 kB\n";
        assert_eq!(Memory::parse(status), Memory { peak_resident: Some(2 << 20), anonymous: Some(4096) });
        assert_eq!(Memory::parse("VmHWM: much\nVmRSS: 1 kB\n"), Memory::default());
    }
}
