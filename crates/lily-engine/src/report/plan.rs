//! What one step of a model does on a device: dispatches, stages, bytes, FLOPs. From `config.json` alone.

use lily_kernels::devices::DeviceKind;
use lily_kernels::op::Counts;
use lily_kernels::plan::{Logits, Phase, PlanKey, Precision, Program};
use lily_kernels::switches::{SWITCHES, Switches};

use crate::checkpoint::Declared;
use crate::error::EngineError;
use crate::model::config::Config;
use crate::model::memory::MemoryLayout;
use crate::model::qwen3_5::Qwen3_5;
use crate::model::weights::Weights;

/// Which step `plan` describes.
#[derive(Debug, Clone)]
pub struct PlanQuery {
    /// Rows of the step: a prefill chunk's tokens, or 1 for a decode step.
    pub tokens: usize,
    /// Prefill chunk or decode.
    pub decode: bool,
    /// Positions already in the cache.
    pub context: usize,
    /// What the step runs on.
    pub device: DeviceKind,
    /// Number formats; `Fast` is what that is on the device.
    pub precision: Precision,
    /// Switch names to turn off.
    pub without: Vec<String>,
    /// Print each dispatch, not only the totals.
    pub dispatches: bool,
}

/// Text of `lily plan`: dispatches, sequential stages, bytes and FLOPs of one step, from `config.json` alone.
///
/// # Errors
/// The config cannot be read or describes a model that Lily does not run.
pub fn plan(config_json: &str, query: &PlanQuery) -> Result<String, EngineError> {
    let config = Config::parse(config_json)?;
    if query.tokens == 0 || query.tokens > 1 << 20 {
        return Err(EngineError::Options(format!("--tokens {}: a step has 1 to {} tokens", query.tokens, 1 << 20)));
    }
    let most = config.max_position_embeddings;
    if query.context > most {
        let message = format!("--context {}: this model takes at most {most} positions", query.context);
        return Err(EngineError::Options(message));
    }
    let mut switches = Switches::default();
    for name in &query.without {
        switches = switches.without(name).ok_or_else(|| {
            let names: Vec<_> = SWITCHES.iter().filter(|s| s.is_of(query.device)).map(|s| s.name).collect();
            EngineError::Options(format!("there is no switch {name}; there are {}", names.join(", ")))
        })?;
    }
    let weights = Weights::load(&config, &mut Declared::from_config(config_json)?)?;
    let precision = if query.precision == Precision::Fast { query.device.fast() } else { query.precision };
    let memory = MemoryLayout::new(&config, precision);
    let phase = if query.decode { Phase::Decode } else { Phase::Prefill };
    let key = PlanKey {
        program: Program::Forward,
        phase,
        token_bucket: query.tokens,
        sequence_bucket: phase.sequences(query.tokens),
        logits: Logits::Last,
        precision,
        device: query.device,
        switches,
    };
    let counts = expected_counts(&config, query);
    let recorded = Qwen3_5 { config, weights, memory }.record(key);
    Ok(recorded.report(&counts, query.dispatches))
}

/// Sizes of a step that was not run: experts as if chosen evenly, tokens all different.
fn expected_counts(config: &Config, query: &PlanQuery) -> Counts {
    let sequences = if query.decode { query.tokens } else { 1 };
    let per_sequence = query.tokens / sequences;
    let attended: usize = (1..=per_sequence).map(|i| query.context + i).sum();
    let share = config.num_experts_per_tok as f64 / config.num_experts.max(1) as f64;
    let missed = (1.0 - share).powf(query.tokens as f64);
    Counts {
        tokens: query.tokens,
        outputs: sequences,
        sequences,
        kv_positions: sequences * (query.context + per_sequence),
        attended: sequences * attended,
        experts_hit: (config.num_experts as f64 * (1.0 - missed)).round() as usize,
        distinct_tokens: query.tokens.min(config.vocab_size),
        longest: query.context + per_sequence,
        cut_spans: 0,
    }
}
