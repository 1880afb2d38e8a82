//! The whole engine behind one door: opens a model, owns the device and the sessions, runs requests.
//! One thread owns an `Engine`; `schedule.rs` queues for it.

use std::path::PathBuf;

use crate::request::{CancelToken, Completion, EventSink, Request, RequestError, SamplingParams};

/// Where the model comes from.
#[derive(Debug, Clone)]
pub enum ModelSource {
    /// A folder with `config.json`, `*.safetensors`, `tokenizer.json`, ...
    Folder(PathBuf),
    /// Files compiled into the program.
    Embedded(EmbeddedModel),
}

/// A model whose files are part of the program.
#[derive(Debug, Clone, Copy)]
pub struct EmbeddedModel {
    /// Shown to users.
    pub name: &'static str,
    /// `(file name, bytes)`.
    pub files: &'static [(&'static str, &'static [u8])],
}

/// Number formats of activations, KV cache and conv state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Precision {
    /// f32 throughout; for tests against goldens.
    Exact,
    /// int8 activations in the quantized matmuls, bf16 KV.
    Fast,
}

/// How to open a model.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Which model.
    pub source: ModelSource,
    /// Number formats.
    pub precision: Precision,
    /// Worker threads; `None` takes the cores this process may use (affinity, cgroup).
    pub threads: Option<usize>,
    /// Positions one session may hold; `None` takes the model's `max_position_embeddings`.
    pub context_length: Option<usize>,
    /// Prefill chunk bound in tokens, at absolute positions.
    pub prefill_chunk: usize,
}

impl EngineOptions {
    /// Defaults for a model.
    pub fn new(source: ModelSource) -> Self {
        Self {
            source,
            precision: Precision::Fast,
            threads: None,
            context_length: None,
            prefill_chunk: 2048,
        }
    }
}

/// What was opened, for people.
#[derive(Debug, Clone)]
pub struct ModelInfo {
    /// Folder name, repository name or the embedded model's name.
    pub name: String,
    /// `model_type` of the config.
    pub model_type: String,
    /// Positions one session can hold.
    pub context_length: usize,
    /// Vocabulary rows.
    pub vocab_size: usize,
    /// Bytes of the text model's tensors.
    pub weight_bytes: u64,
    /// Device and instruction set in words, e.g. `cpu (avx2, 2 threads)`.
    pub device: String,
    /// One sentence each (unknown tensors, ...).
    pub warnings: Vec<String>,
}

/// Why an engine call failed.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The caller's mistake.
    #[error(transparent)]
    Request(#[from] RequestError),
}

/// A loaded model with its device, plans and sessions.
pub struct Engine {}

impl Engine {
    /// Loads a model.
    ///
    /// # Errors
    /// One sentence naming the file and the field.
    pub fn open(_options: &EngineOptions) -> Result<Self, EngineError> {
        Ok(Self {})
    }

    /// What was opened.
    pub fn info(&self) -> ModelInfo {
        unreachable!()
    }

    /// Sampling parameters of `generation_config.json`.
    pub fn default_sampling(&self) -> SamplingParams {
        SamplingParams::GREEDY
    }

    /// Runs one request to its end, reusing the session that shares the longest prefix.
    ///
    /// # Errors
    /// The request is out of range or the device failed. Cancellation is no error.
    pub fn generate(
        &mut self,
        _request: &Request,
        _cancel: &CancelToken,
        _sink: &mut EventSink,
    ) -> Result<Completion, EngineError> {
        unreachable!()
    }
}

/// Text of `lily plan`: dispatches, sequential stages, bytes and FLOPs of one step, from `config.json` alone.
///
/// # Errors
/// The config cannot be read or describes a model that Lily does not run.
pub fn plan_report(_config_json: &str, _options: &PlanQuery) -> Result<String, EngineError> {
    Ok(String::new())
}

/// Which step `plan_report` describes.
#[derive(Debug, Clone)]
pub struct PlanQuery {
    /// Rows of the step: a prefill chunk's tokens, or 1 for a decode step.
    pub tokens: usize,
    /// Prefill chunk or decode.
    pub decode: bool,
    /// Positions already in the cache.
    pub context: usize,
    /// Number formats.
    pub precision: Precision,
    /// Switch names to turn off.
    pub without: Vec<String>,
    /// Print each dispatch, not only the totals.
    pub dispatches: bool,
}
