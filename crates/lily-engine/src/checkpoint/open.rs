//! An opened model: its config, its other files, and the table of its tensors (`tensors.rs` reads from that).

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use lily_kernels::mapped::MappedFile;
use lily_kernels::tensor::FileSlice;

use super::CheckpointError;
use super::ModelSource;
use super::files::ModelFiles;
use super::layout::Layout;
use super::quantization::Quantization;
use super::shards::Shards;
use crate::model::config::{Config, GenerationConfig, union};

/// A model's files, opened and checked against each other. Weights are mapped, not read.
#[derive(Debug)]
pub struct Checkpoint {
    pub(super) files: ModelFiles,
    pub(super) config: Config,
    pub(super) quantization: Quantization,
    pub(super) shards: Shards,
    pub(super) layout: Layout,
    /// Names of the tensors that the model has asked for.
    pub(super) taken: BTreeSet<String>,
    generation_config: GenerationConfig,
}

impl Checkpoint {
    /// Opens a folder with `config.json` and `model.safetensors` (or `model.safetensors.index.json` and its shards), or
    /// an embedded model of the same files.
    ///
    /// # Errors
    /// One sentence naming the file and the field or tensor.
    pub fn open(source: &ModelSource) -> Result<Self, CheckpointError> {
        let files = ModelFiles::open(source)?;
        let config_json = files
            .read_text("config.json")?
            .ok_or_else(|| CheckpointError::file(&files.place(), "there is no config.json"))?;
        let config = Config::parse(&config_json)?;
        let quantization = Quantization::parse(&config_json)?;
        let generation_config = match files.read_text("generation_config.json")? {
            Some(json) => GenerationConfig::parse(&json)?,
            None => GenerationConfig::default(),
        };
        let shards = Shards::open(&files)?;
        let layout = Layout::of(&shards.tensors, &config);
        Ok(Self { files, config, quantization, shards, layout, taken: BTreeSet::new(), generation_config })
    }

    /// `owner/name` for a snapshot in a hub cache, else the folder's or the embedded model's name.
    pub fn name(&self) -> String {
        self.files.model_name()
    }

    /// `config.json`.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// `generation_config.json`, or what its absence means.
    pub fn generation_config(&self) -> &GenerationConfig {
        &self.generation_config
    }

    /// Ids that end a turn, ascending: the config's and the generation config's.
    pub fn eos_token_ids(&self) -> Vec<u32> {
        union(self.config.eos_token_ids.clone(), self.generation_config.eos_token_ids.clone())
    }

    /// Another file of the model, whole (`tokenizer.json`, `chat_template.jinja`, ...); `None` if there is none of that
    /// name.
    ///
    /// # Errors
    /// The file is there and cannot be read.
    pub fn file(&self, name: &str) -> Result<Option<Cow<'static, [u8]>>, CheckpointError> {
        self.files.read(name)
    }

    /// The mapped weight files; [`FileSlice::file`] counts in this list.
    pub fn weight_files(&self) -> &[Arc<MappedFile>] {
        &self.shards.files
    }

    /// The stored bytes of a slice that this checkpoint gave out, at whatever alignment.
    ///
    /// # Panics
    /// The slice is of another checkpoint and out of range here.
    pub fn bytes(&self, slice: FileSlice) -> &[u8] {
        self.shards.bytes(slice)
    }

    /// Bytes of all tensors of the text model, as stored.
    pub fn weight_bytes(&self) -> u64 {
        self.shards.tensors.values().map(|entry| entry.slice.bytes).sum()
    }

    /// Names of the text model's tensors that nobody has asked for so far, ascending.
    pub fn unknown(&self) -> Vec<&str> {
        self.shards.tensors.keys().filter(|name| !self.taken.contains(*name)).map(String::as_str).collect()
    }
}
