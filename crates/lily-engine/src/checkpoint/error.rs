//! What can be wrong with a model's files.

use std::path::PathBuf;

use crate::model::config::ConfigError;

/// Why a model's files were refused. `Display` is one whole sentence naming the file and what is wrong in it, so there
/// is no `source()`.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// A JSON file describes no model that Lily runs.
    #[error("{0}")]
    Config(ConfigError),
    /// The path is no model folder.
    #[error("{} is not a model folder: {problem}", path.display())]
    Folder {
        /// The path as given.
        path: PathBuf,
        /// What is missing or in the way.
        problem: String,
    },
    /// A file is missing, unreadable, damaged, or at odds with another one.
    #[error("{file}: {problem}")]
    File {
        /// Path, or name of an embedded file.
        file: String,
        /// What is wrong.
        problem: String,
    },
    /// A tensor is damaged or is not what the config describes.
    #[error("{file}: tensor {tensor} {problem}")]
    Tensor {
        /// Path, or name of an embedded file.
        file: String,
        /// Name in the file.
        tensor: String,
        /// What is wrong.
        problem: String,
    },
    /// A tensor that the model needs is in no file.
    #[error("{model} has no tensor {tensor}")]
    Missing {
        /// Folder, or the embedded model's name.
        model: String,
        /// Name that a file should have had.
        tensor: String,
    },
}

impl From<ConfigError> for CheckpointError {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

impl CheckpointError {
    pub(super) fn file(file: &str, problem: impl Into<String>) -> Self {
        Self::File { file: file.to_owned(), problem: problem.into() }
    }

    pub(super) fn tensor(file: &str, tensor: &str, problem: impl Into<String>) -> Self {
        Self::Tensor { file: file.to_owned(), tensor: tensor.to_owned(), problem: problem.into() }
    }
}
