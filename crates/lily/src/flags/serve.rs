//! Flags of `lily serve`: where it listens, who may ask, what it logs.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use lily_engine::engine::{DiskOptions, EngineOptions};

use super::{ModelFlags, at_least_one};

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
    #[arg(long, value_name = "N", default_value = "64", value_parser = at_least_one)]
    pub queue: NonZeroUsize,
    /// Requests that run at the same time; each takes memory for a recurrent state
    #[arg(long, value_name = "N", default_value = "4", value_parser = at_least_one)]
    pub parallel: NonZeroUsize,
    /// Keep earlier turns in this folder too, over restarts
    #[arg(long, value_name = "DIR")]
    pub session_dir: Option<PathBuf>,
    /// Most bytes of earlier turns in that folder
    #[arg(long, value_name = "BYTES", default_value = "16G", value_parser = super::parse_bytes, requires = "session_dir")]
    pub session_disk: u64,
    /// Answer only those who bring this key (repeatable)
    #[arg(long, value_name = "KEY")]
    pub api_key: Vec<String>,
    /// The same with the keys in a file, one a line; `#` begins a comment
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// How log lines look on stderr
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// Least level that is logged; a request is one line of level info
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log_level: LogLevel,
    /// Log the bodies of requests too, which hold what people wrote
    #[arg(long)]
    pub log_prompts: bool,
    /// Which model and how it runs.
    #[command(flatten)]
    pub model: ModelFlags,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people
    Text,
    /// One JSON object a line
    Json,
}

/// Least level that is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    /// Nothing
    Off,
    /// What ends the server
    Error,
    /// Answers that failed by the server's fault too
    Warn,
    /// Every request too
    Info,
    /// Whatever there is
    Debug,
}

impl ServeFlags {
    /// The engine's options, with those that only a server has.
    pub fn over(&self, options: EngineOptions) -> EngineOptions {
        let disk = |folder: &PathBuf| DiskOptions { folder: folder.clone(), bytes: self.session_disk };
        EngineOptions { parallel: self.parallel, session_disk: self.session_dir.as_ref().map(disk), ..options }
    }

    /// The keys of the flags, the environment and the file. None: everyone may ask.
    ///
    /// # Errors
    /// The file cannot be read or holds none; a key is empty.
    pub fn keys(&self) -> anyhow::Result<Vec<String>> {
        let mut keys = self.api_key.clone();
        if let Some(path) = &self.api_key_file {
            let shown = path.display();
            let text = std::fs::read_to_string(path).with_context(|| format!("--api-key-file {shown}"))?;
            let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
            let before = keys.len();
            keys.extend(lines.map(str::to_owned));
            // A file without keys is meant to lock the door, not to leave it open.
            if keys.len() == before {
                bail!("--api-key-file {shown}: no key in it");
            }
        }
        if keys.iter().any(|key| key.trim().is_empty()) {
            bail!("--api-key: a key is empty");
        }
        Ok(keys)
    }
}
