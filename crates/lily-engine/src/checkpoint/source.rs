//! Where a model's files are.

use std::path::PathBuf;

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
