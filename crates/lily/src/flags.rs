//! The command line: one table of commands and flags, the one place that reads the environment, and the rule
//! that picks the model. Loads nothing and runs nothing.
#![allow(clippy::disallowed_methods)] // the environment is read here, and only here

mod bench;
mod config;
mod device;
mod hub;
mod inspect;
mod serve;
mod service;

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use lily_engine::checkpoint::cached_model;
use lily_engine::engine::{DEVICES, DeviceKind, EmbeddedModel, EngineOptions, ModelSource, Precision};
use lily_engine::request::{MAX_LOGPROBS, Prompt, Request, RequestError, SamplingParams};

pub use bench::BenchFlags;
pub use config::{ConfigFlags, describe, load};
pub use device::SelftestFlags;
pub use hub::{HubSettings, PullFlags, hub_settings, proxy};
pub use inspect::InspectFlags;
pub use serve::{LogFormat, LogLevel, ServeFlags};
pub use service::{tell_ready, tell_stopping};

/// Where flags may stand.
const SETTINGS: &str = "Flags of chat, run, serve, bench and pull may also stand in the environment (LILY_PORT for --port) \
    and in the configuration file (port = 8080); the command line comes first. `lily config` shows them.";

/// A local inference engine for Qwen3.5/3.6 hybrid models.
#[derive(Debug, Parser)]
#[command(name = "lily", version, propagate_version = true, max_term_width = 100, after_help = SETTINGS)]
pub struct Cli {
    /// Configuration file [default: ~/.config/lily/config.toml, if it is there]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Settings")]
    pub config: Option<PathBuf>,
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
    /// Serve the APIs of OpenAI and Anthropic over HTTP on this machine
    Serve(ServeFlags),
    /// Download a model from the Hugging Face Hub into its cache; an interrupted download is continued
    Pull(PullFlags),
    /// Measure prefill, decode and the first token
    Bench(BenchFlags),
    /// Run every kernel of a device against its reference, and the built-in model on it
    Selftest(SelftestFlags),
    /// Print the settings of environment and configuration file, and where each comes from
    Config(ConfigFlags),
    /// Print the completions of a shell
    Completions(CompletionsFlags),
    /// Print a manual page, or write all of them to a folder
    Man(ManFlags),
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
    /// With --json: the log-probability of each token, and those of the N likeliest
    #[arg(long, value_name = "N", requires = "json", value_parser = parse_logprobs)]
    pub logprobs: Option<usize>,
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
    #[arg(long, value_name = "N", value_parser = at_least_one)]
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
    /// Device that the step is for, whether this build has it or not
    #[arg(long, value_name = "DEVICE", default_value = "cpu", value_parser = device::parse_kind)]
    pub device: DeviceKind,
    /// Number formats of activations and cache
    #[arg(long, value_enum, default_value_t = PrecisionFlag::Fast)]
    pub precision: PrecisionFlag,
}

/// Flags of `lily completions`.
#[derive(Debug, Args)]
pub struct CompletionsFlags {
    /// The shell
    pub shell: Shell,
}

/// Flags of `lily man`.
#[derive(Debug, Args)]
pub struct ManFlags {
    /// The page of this command instead of the program's
    #[arg(value_name = "COMMAND", conflicts_with = "dir")]
    pub command: Option<String>,
    /// Write every page to this folder; it is made if it is not there
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
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
    /// Subtract X from the logits of tokens that were generated
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub presence_penalty: Option<f32>,
    /// Subtract X for each time that a token was generated
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub frequency_penalty: Option<f32>,
    /// Divide positive logits of tokens of prompt and answer by X, multiply others; 1 is none
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub repetition_penalty: Option<f32>,
    /// Add BIAS to the logit of a token (repeatable)
    #[arg(long, value_name = "ID=BIAS", value_parser = parse_bias)]
    pub logit_bias: Vec<(u32, f32)>,
    /// End the answer before this text (repeatable)
    #[arg(long, value_name = "STR", allow_hyphen_values = true)]
    pub stop: Vec<String>,
    /// Same seed, same text [default: random]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Stop after N tokens [default: the end of the context]
    #[arg(long, value_name = "N")]
    pub max_tokens: Option<usize>,
}

impl SamplingFlags {
    /// A request with these flags over the model's defaults.
    pub fn request(&self, prompt: Prompt, defaults: SamplingParams, random_seed: u64) -> Request {
        Request {
            logit_bias: self.logit_bias.clone(),
            stop: self.stop.clone(),
            max_tokens: self.max_tokens,
            ..Request::new(prompt, self.over(defaults, random_seed))
        }
    }

    /// The model's defaults with the given flags in their place. Without `--seed` the seed is `random_seed`.
    fn over(&self, defaults: SamplingParams, random_seed: u64) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature.unwrap_or(defaults.temperature),
            top_k: self.top_k.unwrap_or(defaults.top_k),
            top_p: self.top_p.unwrap_or(defaults.top_p),
            min_p: self.min_p.unwrap_or(defaults.min_p),
            presence_penalty: self.presence_penalty.unwrap_or(defaults.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(defaults.frequency_penalty),
            repetition_penalty: self.repetition_penalty.unwrap_or(defaults.repetition_penalty),
            seed: self.seed.unwrap_or(random_seed),
        }
    }

    /// Checks the ranges by the engine's own rules, before a model is loaded for nothing.
    ///
    /// # Errors
    /// Names the first flag out of its range.
    pub fn check(&self) -> Result<(), RequestError> {
        self.request(Prompt::Tokens(Vec::new()), SamplingParams::GREEDY, 0).validate()
    }
}

fn parse_logprobs(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| *count <= MAX_LOGPROBS);
    count.ok_or_else(|| format!("not a number from 0 to {MAX_LOGPROBS}"))
}

/// `ID=BIAS`; ranges are the engine's business.
fn parse_bias(text: &str) -> Result<(u32, f32), String> {
    let parts = text.split_once('=').and_then(|(id, bias)| Some((id.trim().parse().ok()?, bias.trim().parse().ok()?)));
    parts.ok_or_else(|| "not a token id, =, and a number, as in 42=-100".to_owned())
}

/// Which model and how it runs; common to all commands that load one.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model")]
pub struct ModelFlags {
    /// Model folder, OWNER/NAME of a repository in the Hugging Face cache, or `lily-demo` for the built-in model
    /// [default: $LILY_MODEL, else Qwen3.6-35B-A3B-4bit from the Hugging Face cache, else the built-in model]
    #[arg(long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
    #[arg(long, value_name = "DEVICE", default_value = DEVICES[0], value_parser = device::parse_device, help = device::help())]
    pub device: String,
    /// Number formats of activations and cache
    #[arg(long, value_enum, default_value_t = PrecisionFlag::Fast)]
    pub precision: PrecisionFlag,
    /// Worker threads [default: the cores this process may use]
    #[arg(long, value_name = "N", value_parser = parse_threads)]
    pub threads: Option<NonZeroUsize>,
    /// Positions one conversation may hold [default: the model's, or as many as fit in memory]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub context: Option<NonZeroUsize>,
    /// Memory to plan with, for example 12G or 900M [default: what the machine has available]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub memory: Option<u64>,
    /// Memory for earlier turns and requests side by side, beyond one context [default: a share of all]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes_or_none)]
    pub session_memory: Option<u64>,
    /// Prompt tokens computed in one step
    #[arg(long, value_name = "N", hide_short_help = true, value_parser = at_least_one)]
    pub prefill_chunk: Option<NonZeroUsize>,
}

impl ModelFlags {
    /// The options to open the engine with, and the line that tells which model was picked when `--model` was
    /// not given.
    ///
    /// # Errors
    /// As `pick_model`.
    pub fn engine_options(&self) -> anyhow::Result<(EngineOptions, Option<String>)> {
        let (source, why) = pick_model(self.model.as_deref(), &process_env)?;
        let mut options = EngineOptions::new(source);
        options.device.clone_from(&self.device);
        options.precision = self.precision.into();
        options.threads = self.threads.map(NonZeroUsize::get);
        options.context_length = self.context.map(NonZeroUsize::get);
        options.memory = self.memory;
        options.session_memory = self.session_memory;
        options.cache = device::kernel_cache(&process_env);
        if let Some(chunk) = self.prefill_chunk {
            options.prefill_chunk = chunk.get();
        }
        Ok((options, why))
    }
}

/// `--precision`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PrecisionFlag {
    /// f32 throughout, to compare with references
    Exact,
    /// bf16 cache, and on the CPU int8 activations in the quantized matmuls
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

/// A number with a unit of ten: `900M`, `12G`, `1.5GB`.
fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 1.0,
        "K" | "KB" => 1e3,
        "M" | "MB" => 1e6,
        "G" | "GB" => 1e9,
        "T" | "TB" => 1e12,
        _ => return Err("a unit is one of K, M, G, T".to_owned()),
    };
    let number: f64 = digits.parse().map_err(|error| format!("{error}"))?;
    let bytes = number * unit;
    // The cast saturates, and no machine comes near the bound.
    if (1.0..1e18).contains(&bytes) { Ok(bytes as u64) } else { Err("no memory of this size exists".to_owned()) }
}

/// The same, or nothing at all.
fn parse_bytes_or_none(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { parse_bytes(text) }
}

/// More than any machine has cores. Far more of them would only wait for one another, and so would the user.
const MAX_THREADS: usize = 1024;

fn at_least_one(text: &str) -> Result<NonZeroUsize, String> {
    text.parse().map_err(|_| "a whole number of at least 1 is wanted".to_owned())
}

fn parse_threads(text: &str) -> Result<NonZeroUsize, String> {
    let threads = at_least_one(text)?;
    if threads.get() > MAX_THREADS {
        return Err(format!("at most {MAX_THREADS} threads"));
    }
    Ok(threads)
}

/// The model for Apple machines that Lily is made for; what `pull` downloads, and used when it lies complete in the
/// cache.
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

/// The model named, else the cached repository, else the embedded model. The line says which and why; where one is named
/// there is nothing to say.
///
/// # Errors
/// A repository is named that is not in the cache.
pub fn pick_model(explicit: Option<&Path>, env: Env) -> anyhow::Result<(ModelSource, Option<String>)> {
    if let Some(path) = explicit {
        return Ok((source_of(path, env)?, None));
    }
    let hub = hub::hub_dir(env);
    if let Some(folder) = hub.as_deref().and_then(|hub| cached_model(hub, CACHED_REPO)) {
        let line = format!("model: {CACHED_REPO} from {} (no model is named)", folder.display());
        return Ok((ModelSource::Folder(folder), Some(line)));
    }
    let line = format!(
        "model: the built-in {} (no model is named, and there is no complete {CACHED_REPO} in the Hugging Face cache)",
        DEMO.name
    );
    Ok((ModelSource::Embedded(DEMO), Some(line)))
}

/// A folder is a folder, whatever it is called; a name without one may be a repository.
fn source_of(path: &Path, env: Env) -> anyhow::Result<ModelSource> {
    if path == Path::new(DEMO.name) {
        return Ok(ModelSource::Embedded(DEMO));
    }
    let repo = path.to_str().filter(|text| hub::parse_repo(text).is_ok());
    let (false, Some(repo)) = (path.exists(), repo) else { return Ok(ModelSource::Folder(path.to_owned())) };
    match hub::hub_dir(env).and_then(|hub| cached_model(&hub, repo)) {
        Some(folder) => Ok(ModelSource::Folder(folder)),
        None => bail!(
            "{repo}: there is no such folder, and no complete repository of that name in the Hugging Face cache; \
             `lily pull {repo}` downloads it"
        ),
    }
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
        let (source, line) = pick_model(Some(Path::new("/m")), &env(&[])).unwrap();
        assert_eq!(folder(source), Some("/m".into()));
        assert_eq!(line, None);
    }

    #[test]
    fn the_embedded_model_is_the_last_resort_and_can_be_named() {
        let (source, line) = pick_model(None, &env(&[("HF_HUB_CACHE", "/nowhere")])).unwrap();
        assert_eq!(folder(source), None);
        assert!(line.is_some_and(|line| line.starts_with("model: the built-in lily-demo") && !line.contains('\n')));
        let (source, line) = pick_model(Some(Path::new("lily-demo")), &env(&[])).unwrap();
        assert_eq!((folder(source), line), (None, None));
        let (source, _) = pick_model(Some(Path::new("./lily-demo")), &env(&[])).unwrap();
        assert_eq!(folder(source), Some("./lily-demo".into()));
    }

    #[test]
    fn a_repository_that_is_not_cached_is_one_to_pull() {
        let nowhere = env(&[("HF_HUB_CACHE", "/nowhere")]);
        let error = pick_model(Some(Path::new("owner/name")), &nowhere).unwrap_err().to_string();
        assert!(error.contains("`lily pull owner/name`"), "{error}");
        for path in ["/no/such", "no/such/model", "../name", "name", "crates/none/"] {
            assert_eq!(folder(pick_model(Some(Path::new(path)), &nowhere).unwrap().0), Some(path.into()));
        }
    }

    #[test]
    fn sizes_of_memory_have_units() {
        for (text, bytes) in [("1", 1), ("900M", 900_000_000), ("12g", 12_000_000_000), ("1.5KB", 1_500)] {
            assert_eq!(parse_bytes(text), Ok(bytes));
        }
        for text in ["", "G", "-1G", "1X", "0", "0M", "99999999T", "1 G", "nan", "infG"] {
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
        let Ok(Cli { command: Command::Run(flags), .. }) = parse(&["run", "--temperature", "-1", "x"]) else {
            panic!("parses");
        };
        assert!(flags.sampling.check().unwrap_err().to_string().starts_with("temperature: -1"));
        let zero = SamplingFlags { max_tokens: Some(0), ..Default::default() };
        assert!(zero.check().is_err());
        let no_text = SamplingFlags { stop: vec![String::new()], ..Default::default() };
        assert!(no_text.check().unwrap_err().to_string().starts_with("stop: "));
        assert!(SamplingFlags::default().check().is_ok());
    }

    #[test]
    fn bias_and_stop_strings_are_repeatable() {
        let args = ["run", "--logit-bias", "5=-100", "--logit-bias", "7=1.5", "--stop", "-", "--stop", "\n\n", "x"];
        let Ok(Cli { command: Command::Run(flags), .. }) = parse(&args) else { panic!("parses") };
        let request = flags.sampling.request(Prompt::Raw("x".into()), SamplingParams::GREEDY, 1);
        assert_eq!(request.logit_bias, [(5, -100.0), (7, 1.5)]);
        assert_eq!(request.stop, ["-", "\n\n"]);
        for bias in ["5", "5=", "=1", "a=1", "5=x", "5=1=2"] {
            let error = parse(&["run", "--logit-bias", bias, "x"]).unwrap_err().to_string();
            assert!(error.contains("not a token id, =, and a number"), "{error}");
        }
        assert!(parse(&["run", "--logprobs", "3", "x"]).is_err(), "only with --json");
        assert!(parse(&["run", "--json", "--logprobs", "20", "x"]).is_ok());
        let error = parse(&["run", "--json", "--logprobs", "21", "x"]).unwrap_err().to_string();
        assert!(error.contains("not a number from 0 to 20"), "{error}");
    }

    #[test]
    fn sampling_defaults_come_from_the_model() {
        let model = SamplingParams {
            temperature: 0.6,
            top_k: 20,
            top_p: 0.95,
            min_p: 0.1,
            repetition_penalty: 1.1,
            ..SamplingParams::GREEDY
        };
        let flags = SamplingFlags { top_k: Some(0), ..Default::default() };
        assert_eq!(flags.over(model, 7), SamplingParams { top_k: 0, seed: 7, ..model });
        let seeded = SamplingFlags { seed: Some(3), ..Default::default() };
        assert_eq!(seeded.over(model, 7).seed, 3);
    }

    #[test]
    fn switches_split_at_commas() {
        let Ok(Cli { command: Command::Plan(flags), .. }) = parse(&["plan", "--without", "a,b", "--without", "c"])
        else {
            panic!("parses");
        };
        assert_eq!(flags.without, ["a", "b", "c"]);
    }
}
