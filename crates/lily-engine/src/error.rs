//! Why an engine call failed: one enum over the errors of the parts.

use std::sync::Arc;

use lily_kernels::backend::DeviceError;

use crate::checkpoint::CheckpointError;
use crate::model::config::ConfigError;
use crate::request::RequestError;
use crate::session::OutOfBlocks;
use crate::text::{GrammarError, TextError};

/// Why an engine call failed.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The caller's mistake.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The model's files.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The model's config.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The model's tokenizer or template.
    #[error(transparent)]
    Text(TextError),
    /// The options.
    #[error("{0}")]
    Options(String),
    /// The machine has too little memory.
    #[error("{0}")]
    Memory(String),
    /// There is no distribution to choose a token from.
    #[error(
        "the model's logits are not numbers at position {position}: its weights are damaged, or its values overflow"
    )]
    Logits {
        /// Of the token that was to be chosen, from 0 at the prompt's first.
        position: usize,
    },
    /// What the answer must be.
    #[error(transparent)]
    Grammar(#[from] GrammarError),
    /// The cache.
    #[error(transparent)]
    Cache(#[from] OutOfBlocks),
    /// The device; told to every request of the step that failed.
    #[error(transparent)]
    Device(Arc<DeviceError>),
}

impl From<DeviceError> for EngineError {
    fn from(error: DeviceError) -> Self {
        Self::Device(Arc::new(error))
    }
}
