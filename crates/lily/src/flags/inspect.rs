//! Flags of `lily inspect`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;

use super::{PrecisionFlag, at_least_one, device};

/// Flags of `lily inspect`.
#[derive(Debug, Args)]
pub struct InspectFlags {
    /// A model folder, with weights or without [default: the default model's]
    #[arg(value_name = "PATH", conflicts_with = "model")]
    pub path: Option<PathBuf>,
    /// The same as PATH
    #[arg(long, value_name = "PATH")]
    pub model: Option<PathBuf>,
    /// Print what this device has, and what it does without, instead of a model
    #[arg(long, value_name = "DEVICE", value_parser = device::parse_device, conflicts_with_all = ["path", "model"])]
    pub device: Option<String>,
    /// Positions of the cache [default: the model's]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub context: Option<NonZeroUsize>,
    /// Prompt tokens computed in one step
    #[arg(long, value_name = "N", default_value = "2048", hide_short_help = true, value_parser = at_least_one)]
    pub prefill_chunk: NonZeroUsize,
    /// Number formats of activations and cache
    #[arg(long, value_enum, default_value_t = PrecisionFlag::Fast)]
    pub precision: PrecisionFlag,
}
