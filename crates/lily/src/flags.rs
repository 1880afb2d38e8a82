//! The command line: one table of commands and flags, the one place that reads the environment, and the rule
//! that picks the model. Loads nothing and runs nothing.
#![allow(clippy::disallowed_methods)] // the environment is read here, and only here

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};
use lily_engine::checkpoint::cached_model;
use lily_engine::engine::{EmbeddedModel, EngineOptions, ModelSource, Precision};
use lily_engine::request::{Prompt, Request, RequestError, SamplingParams};

/// A local inference engine for Qwen3.5/3.6 hybrid models.
#[derive(Debug, Parser)]
#[command(name = "lily", version, propagate_version = true, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Every command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Talk with the model; `/help` inside lists the commands
    Chat(ChatFlags),
    /// Answer one prompt and exit; text piped in on stdin follows the prompt
    Run(RunFlags),
    /// Print what one step of the model does on the device: dispatches, stages, bytes, FLOPs
    Plan(PlanFlags),
    /// Print what a model's files hold and what it takes to run them: config, tensors, bytes, memory, warnings
    Inspect(InspectFlags),
    /// Serve the OpenAI chat API over HTTP on this machine
    Serve(ServeFlags),
}

/// Flags of `lily chat`.
#[derive(Debug, Args)]
pub struct ChatFlags {
    /// How the conversation starts and whether the model thinks.
    #[command(flatten)]
    pub conversation: ConversationFlags,
    /// How tokens are chosen.
    #[command(flatten)]
    pub sampling: SamplingFlags,
    /// Which model and how it runs.
    #[command(flatten)]
    pub model: ModelFlags,
}

/// Flags of `lily run`.
#[derive(Debug, Args)]
pub struct RunFlags {
    /// The prompt; stdin, when it is no terminal, is appended after a blank line
    pub prompt: Option<String>,
    /// Print one JSON object instead of streaming text
    #[arg(long)]
    pub json: bool,
    /// Continue the text as it stands, without the chat template
    #[arg(long, conflicts_with_all = ["system", "no_think"])]
    pub raw: bool,
    /// Go on past the tokens that end an answer (for measurements)
    #[arg(long)]
    pub ignore_eos: bool,
    /// How the conversation starts and whether the model thinks.
    #[command(flatten)]
    pub conversation: ConversationFlags,
    /// How tokens are chosen.
    #[command(flatten)]
    pub sampling: SamplingFlags,
    /// Which model and how it runs.
    #[command(flatten)]
    pub model: ModelFlags,
}

/// Flags of `lily plan`.
#[derive(Debug, Args)]
pub struct PlanFlags {
    /// A config.json, or a folder that holds one [default: the default model's]
    #[arg(value_name = "PATH", conflicts_with = "model")]
    pub path: Option<PathBuf>,
    /// The same as PATH
    #[arg(long, value_name = "PATH")]
    pub model: Option<PathBuf>,
    /// Describe a prefill chunk of N tokens instead of a decode step
    #[arg(long, value_name = "N")]
    pub tokens: Option<NonZeroUsize>,
    /// Positions already in the cache
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub context: usize,
    /// List every dispatch, not only the totals
    #[arg(long)]
    pub dispatches: bool,
    /// Turn an optimisation off (repeat, or separate by commas)
    #[arg(long, value_name = "SWITCH", value_delimiter = ',')]
    pub without: Vec<String>,
    /// Number formats of activations and cache
    #[arg(long, value_enum, default_value_t = PrecisionFlag::Fast)]
    pub precision: PrecisionFlag,
}

/// Flags of `lily inspect`.
#[derive(Debug, Args)]
pub struct InspectFlags {
    /// A model folder, with weights or without [default: the default model's]
    #[arg(value_name = "PATH", conflicts_with = "model")]
    pub path: Option<PathBuf>,
    /// The same as PATH
    #[arg(long, value_name = "PATH")]
    pub model: Option<PathBuf>,
    /// Positions of the cache [default: the model's]
    #[arg(long, value_name = "N")]
    pub context: Option<NonZeroUsize>,
    /// Prompt tokens computed in one step
    #[arg(long, value_name = "N", default_value = "2048", hide_short_help = true)]
    pub prefill_chunk: NonZeroUsize,
    /// Number formats of activations and cache
    #[arg(long, value_enum, default_value_t = PrecisionFlag::Fast)]
    pub precision: PrecisionFlag,
}

/// Flags of `lily serve`.
#[derive(Debug, Args)]
pub struct ServeFlags {
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// Port to listen on; 0 takes a free one and prints it
    #[arg(long, default_value_t = 8080)]
    pub port: u16,
    /// Accept this name in the Host and Origin headers too (repeatable)
    #[arg(long, value_name = "NAME")]
    pub allow_host: Vec<String>,
    /// Requests that may wait; one more is answered 503
    #[arg(long, value_name = "N", default_value = "64")]
    pub queue: NonZeroUsize,
    /// Which model and how it runs.
    #[command(flatten)]
    pub model: ModelFlags,
}

/// Flags that shape the conversation, for `run` and `chat`.
#[derive(Debug, Clone, Args)]
pub struct ConversationFlags {
    /// System message
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Answer without thinking first
    #[arg(long)]
    pub no_think: bool,
}

impl ConversationFlags {
    /// `enable_thinking` for the template: off, or left to the template's default.
    pub fn enable_thinking(&self) -> Option<bool> {
        self.no_think.then_some(false)
    }
}

/// Sampling flags; what is not given comes from the model's `generation_config.json`.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Sampling (default: the model's)")]
pub struct SamplingFlags {
    /// 0 always takes the likeliest token
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub temperature: Option<f32>,
    /// Draw from the K likeliest tokens; 0 is all
    #[arg(long, value_name = "K")]
    pub top_k: Option<u32>,
    /// Draw from the smallest set with this probability
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub top_p: Option<f32>,
    /// Drop tokens less likely than P times the likeliest
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub min_p: Option<f32>,
    /// Same seed, same text [default: random]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Stop after N tokens [default: the end of the context]
    #[arg(long, value_name = "N")]
    pub max_tokens: Option<usize>,
}

impl SamplingFlags {
    /// The model's defaults with the given flags in their place. Without `--seed` the seed is `random_seed`.
    pub fn over(&self, defaults: SamplingParams, random_seed: u64) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature.unwrap_or(defaults.temperature),
            top_k: self.top_k.unwrap_or(defaults.top_k),
            top_p: self.top_p.unwrap_or(defaults.top_p),
            min_p: self.min_p.unwrap_or(defaults.min_p),
            seed: self.seed.unwrap_or(random_seed),
        }
    }

    /// Checks the ranges by the engine's own rules, before a model is loaded for nothing.
    ///
    /// # Errors
    /// Names the first flag out of its range.
    pub fn check(&self) -> Result<(), RequestError> {
        Request {
            prompt: Prompt::Tokens(Vec::new()),
            sampling: self.over(SamplingParams::GREEDY, 0),
            max_tokens: self.max_tokens,
            ignore_eos: false,
        }
        .validate()
    }
}

/// Which model and how it runs; common to all commands that load one.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model")]
pub struct ModelFlags {
    /// Model folder, or `lily-demo` for the built-in model [default: $LILY_MODEL, else
    /// Qwen3.6-35B-A3B-4bit from the Hugging Face cache, else the built-in model]
    #[arg(long, value_name = "PATH")]
    pub model: Option<PathBuf>,
    /// Where to run; this build has `cpu`
    #[arg(long, value_name = "DEVICE", default_value = "cpu", value_parser = parse_device)]
    pub device: String,
    /// Number formats of activations and cache
    #[arg(long, value_enum, default_value_t = PrecisionFlag::Fast)]
    pub precision: PrecisionFlag,
    /// Worker threads [default: the cores this process may use]
    #[arg(long, value_name = "N", value_parser = parse_threads)]
    pub threads: Option<NonZeroUsize>,
    /// Positions one conversation may hold [default: the model's, or as many as fit in memory]
    #[arg(long, value_name = "N")]
    pub context: Option<NonZeroUsize>,
    /// Memory to plan with, for example 12G or 900M [default: what the machine has available]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub memory: Option<u64>,
    /// Prompt tokens computed in one step
    #[arg(long, value_name = "N", hide_short_help = true)]
    pub prefill_chunk: Option<NonZeroUsize>,
}

impl ModelFlags {
    /// The options to open the engine with, and the line that tells which model was picked when `--model` was
    /// not given.
    pub fn engine_options(&self) -> (EngineOptions, Option<String>) {
        let (source, why) = pick_model(self.model.as_deref(), &process_env);
        let mut options = EngineOptions::new(source);
        options.precision = self.precision.into();
        options.threads = self.threads.map(NonZeroUsize::get);
        options.context_length = self.context.map(NonZeroUsize::get);
        options.memory = self.memory;
        if let Some(chunk) = self.prefill_chunk {
            options.prefill_chunk = chunk.get();
        }
        (options, why)
    }
}

/// `--precision`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PrecisionFlag {
    /// f32 throughout, to compare with references
    Exact,
    /// int8 activations in the quantized matmuls, bf16 cache
    Fast,
}

impl From<PrecisionFlag> for Precision {
    fn from(flag: PrecisionFlag) -> Self {
        match flag {
            PrecisionFlag::Exact => Self::Exact,
            PrecisionFlag::Fast => Self::Fast,
        }
    }
}

fn parse_device(name: &str) -> Result<String, String> {
    match name {
        "cpu" => Ok(name.to_owned()),
        "metal" | "cuda" => Err(format!("this build has no {name} device; it runs on cpu")),
        _ => Err("no such device; this build runs on cpu".to_owned()),
    }
}

/// A whole number with a unit of ten: `900M`, `12G`, `12GB`.
fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 1,
        "K" | "KB" => 1_000,
        "M" | "MB" => 1_000_000,
        "G" | "GB" => 1_000_000_000,
        "T" | "TB" => 1_000_000_000_000,
        _ => return Err("a unit is one of K, M, G, T".to_owned()),
    };
    let number: u64 = digits.parse().map_err(|error| format!("{error}"))?;
    number.checked_mul(unit).filter(|bytes| *bytes > 0).ok_or_else(|| "no memory of this size exists".to_owned())
}

/// More than any machine has cores. Far more of them would only wait for one another, and so would the user.
const MAX_THREADS: usize = 1024;

fn parse_threads(text: &str) -> Result<NonZeroUsize, String> {
    let threads: NonZeroUsize = text.parse().map_err(|error| format!("{error}"))?;
    if threads.get() > MAX_THREADS {
        return Err(format!("at most {MAX_THREADS} threads"));
    }
    Ok(threads)
}

/// The model for Apple machines that Lily is made for; used when it lies complete in the cache.
const CACHED_REPO: &str = "mlx-community/Qwen3.6-35B-A3B-4bit";

/// The real, small model inside the program.
pub const DEMO: EmbeddedModel = EmbeddedModel {
    name: "lily-demo",
    files: &[
        ("config.json", include_bytes!("../../../models/lily-demo/config.json")),
        ("generation_config.json", include_bytes!("../../../models/lily-demo/generation_config.json")),
        ("tokenizer.json", include_bytes!("../../../models/lily-demo/tokenizer.json")),
        ("tokenizer_config.json", include_bytes!("../../../models/lily-demo/tokenizer_config.json")),
        ("chat_template.jinja", include_bytes!("../../../models/lily-demo/chat_template.jinja")),
        ("model.safetensors", include_bytes!("../../../models/lily-demo/model.safetensors")),
    ],
};

/// Looks a variable up; an empty one counts as unset.
type Env<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The environment of this process.
pub fn process_env(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Whether the user asked for output without escape sequences (<https://no-color.org>, or a dumb terminal).
pub fn plain_output() -> bool {
    process_env("NO_COLOR").is_some() || process_env("TERM").is_some_and(|term| term == "dumb")
}

/// `--model`, else `LILY_MODEL`, else the cached repository, else the embedded model. The line says which and
/// why; with `--model` there is nothing to say.
pub fn pick_model(explicit: Option<&Path>, env: Env) -> (ModelSource, Option<String>) {
    if let Some(path) = explicit {
        return (source_of(path), None);
    }
    if let Some(path) = env("LILY_MODEL").map(PathBuf::from) {
        let line = format!("model: {} (LILY_MODEL)", path.display());
        return (source_of(&path), Some(line));
    }
    let hub = hub_dir(env);
    if let Some(folder) = hub.as_deref().and_then(|hub| cached_model(hub, CACHED_REPO)) {
        let line = format!("model: {CACHED_REPO} from {} (no --model, no LILY_MODEL)", folder.display());
        return (ModelSource::Folder(folder), Some(line));
    }
    let line = format!(
        "model: the built-in {} (no --model, no LILY_MODEL, no complete {CACHED_REPO} in the Hugging Face cache)",
        DEMO.name
    );
    (ModelSource::Embedded(DEMO), Some(line))
}

fn source_of(path: &Path) -> ModelSource {
    if path == Path::new(DEMO.name) { ModelSource::Embedded(DEMO) } else { ModelSource::Folder(path.to_owned()) }
}

/// The Hugging Face hub cache, found the way `huggingface_hub` finds it.
fn hub_dir(env: Env) -> Option<PathBuf> {
    if let Some(hub) = env("HF_HUB_CACHE") {
        return Some(hub.into());
    }
    if let Some(home) = env("HF_HOME") {
        return Some(Path::new(&home).join("hub"));
    }
    let cache =
        env("XDG_CACHE_HOME").map(PathBuf::from).or_else(|| env("HOME").map(|home| Path::new(&home).join(".cache")))?;
    Some(cache.join("huggingface").join("hub"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn env<'a>(pairs: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
        move |name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into())
    }

    fn parse(args: &[&str]) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(std::iter::once("lily").chain(args.iter().copied()))
    }

    fn folder(source: ModelSource) -> Option<PathBuf> {
        match source {
            ModelSource::Folder(path) => Some(path),
            ModelSource::Embedded(_) => None,
        }
    }

    #[test]
    fn the_command_table_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn model_flag_wins_and_says_nothing() {
        let (source, line) = pick_model(Some(Path::new("/m")), &env(&[("LILY_MODEL", "/other")]));
        assert_eq!(folder(source), Some("/m".into()));
        assert_eq!(line, None);
    }

    #[test]
    fn lily_model_is_named_in_the_line() {
        let (source, line) = pick_model(None, &env(&[("LILY_MODEL", "/other")]));
        assert_eq!(folder(source), Some("/other".into()));
        assert_eq!(line.as_deref(), Some("model: /other (LILY_MODEL)"));
    }

    #[test]
    fn the_embedded_model_is_the_last_resort_and_can_be_named() {
        let (source, line) = pick_model(None, &env(&[("HF_HUB_CACHE", "/nowhere")]));
        assert_eq!(folder(source), None);
        assert!(line.is_some_and(|line| line.starts_with("model: the built-in lily-demo") && !line.contains('\n')));
        let (source, line) = pick_model(Some(Path::new("lily-demo")), &env(&[]));
        assert_eq!((folder(source), line), (None, None));
        let (source, _) = pick_model(Some(Path::new("./lily-demo")), &env(&[]));
        assert_eq!(folder(source), Some("./lily-demo".into()));
    }

    #[test]
    fn the_hub_is_found_like_huggingface_hub_does() {
        let all = [("HF_HUB_CACHE", "/a"), ("HF_HOME", "/b"), ("XDG_CACHE_HOME", "/c"), ("HOME", "/d")];
        let want = ["/a", "/b/hub", "/c/huggingface/hub", "/d/.cache/huggingface/hub"];
        for (skip, want) in want.iter().enumerate() {
            assert_eq!(hub_dir(&env(&all[skip..])), Some(want.into()));
        }
        assert_eq!(hub_dir(&env(&[])), None);
    }

    #[test]
    fn other_devices_are_refused_by_name() {
        let error = parse(&["run", "--device", "metal", "x"]).unwrap_err().to_string();
        assert!(error.contains("this build has no metal device"), "{error}");
    }

    #[test]
    fn sizes_of_memory_have_units() {
        for (text, bytes) in [("1", 1), ("900M", 900_000_000), ("12g", 12_000_000_000), ("3KB", 3_000)] {
            assert_eq!(parse_bytes(text), Ok(bytes));
        }
        for text in ["", "G", "-1G", "1.5G", "1X", "0", "0M", "99999999T", "1 G"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn zero_counts_and_raw_with_template_flags_are_usage_errors() {
        for args in [
            &["run", "--threads", "0", "x"][..],
            &["run", "--threads", "10000", "x"],
            &["chat", "--context", "0"],
            &["run", "--raw", "--system", "s", "x"],
            &["run", "--raw", "--no-think", "x"],
            &["plan", "a", "--model", "b"],
        ] {
            assert!(parse(args).is_err(), "{args:?}");
        }
    }

    #[test]
    fn sampling_flags_are_checked_before_the_model_loads() {
        let Ok(Cli { command: Command::Run(flags) }) = parse(&["run", "--temperature", "-1", "x"]) else {
            panic!("parses");
        };
        assert!(flags.sampling.check().unwrap_err().to_string().starts_with("temperature: -1"));
        let zero = SamplingFlags { max_tokens: Some(0), ..Default::default() };
        assert!(zero.check().is_err());
        assert!(SamplingFlags::default().check().is_ok());
    }

    #[test]
    fn sampling_defaults_come_from_the_model() {
        let model = SamplingParams { temperature: 0.6, top_k: 20, top_p: 0.95, min_p: 0.1, seed: 0 };
        let flags = SamplingFlags { top_k: Some(0), ..Default::default() };
        assert_eq!(flags.over(model, 7), SamplingParams { top_k: 0, seed: 7, ..model });
        let seeded = SamplingFlags { seed: Some(3), ..Default::default() };
        assert_eq!(seeded.over(model, 7).seed, 3);
    }

    #[test]
    fn switches_split_at_commas() {
        let Ok(Cli { command: Command::Plan(flags) }) = parse(&["plan", "--without", "a,b", "--without", "c"]) else {
            panic!("parses");
        };
        assert_eq!(flags.without, ["a", "b", "c"]);
    }
}
