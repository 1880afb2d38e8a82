//! Flags of `lily bench`.

use std::num::NonZeroUsize;

use clap::Args;

use super::ModelFlags;

/// Flags of `lily bench`.
#[derive(Debug, Args)]
pub struct BenchFlags {
    /// Prompt lengths to measure, one row each; decode is measured behind the prompt
    #[arg(long, value_name = "N", value_delimiter = ',', default_values = ["128", "512"], value_parser = super::at_least_one)]
    pub prompt_tokens: Vec<NonZeroUsize>,
    /// Tokens to decode behind each prompt; the first of them comes from the prompt's last logits
    #[arg(long, value_name = "N", default_value = "64", value_parser = super::at_least_one)]
    pub tokens: NonZeroUsize,
    /// Rounds that count; one more runs before them to warm up
    #[arg(long, value_name = "N", default_value = "5", value_parser = super::at_least_one)]
    pub rounds: NonZeroUsize,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
    /// Which model and how it runs.
    #[command(flatten)]
    pub model: ModelFlags,
}
