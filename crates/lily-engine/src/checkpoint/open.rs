//! An opened model: its config, its other files, and the table of its tensors (`tensors.rs` reads from that).

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use lily_kernels::mapped::MappedFile;
use lily_kernels::tensor::FileSlice;

use super::CheckpointError;
use super::ModelSource;
use super::files::ModelFiles;
use super::layout::Layout;
use super::quantization::Quantization;
use super::shards::{INDEX_FILE, Shards, WEIGHT_FILE};
use crate::model::config::{Config, GenerationConfig, union};

/// What lies in a model's folder, before any weight is looked at.
#[derive(Debug)]
pub struct ModelFolder {
    /// As [`Checkpoint::name`].
    pub name: String,
    /// Text of `config.json`.
    pub config_json: String,
    /// There is a weight file or an index of them.
    pub has_weights: bool,
    /// Bytes of `tokenizer.json`; 0 without one.
    pub tokenizer_bytes: u64,
    /// What is missing and what follows from that, one sentence each.
    pub warnings: Vec<String>,
}

impl ModelFolder {
    /// Looks.
    ///
    /// # Errors
    /// There is no folder, or no readable `config.json` in it.
    pub fn look(source: &ModelSource) -> Result<Self, CheckpointError> {
        let files = ModelFiles::open(source)?;
        let config_json = config_json(&files)?;
        let has_weights = files.has(INDEX_FILE) || files.has(WEIGHT_FILE);
        let tokenizer_bytes = files.read("tokenizer.json")?.map_or(0, |file| file.len() as u64);
        let missing = [
            ("tokenizer.json", "the model cannot be run"),
            ("tokenizer_config.json", "stop tokens are those of the other files"),
            ("generation_config.json", "the default is to take the likeliest token"),
        ];
        let mut warnings: Vec<String> = missing
            .iter()
            .filter(|(name, _)| !files.has(name))
            .map(|(name, so)| format!("there is no {name}, so {so}"))
            .collect();
        if !has_weights {
            warnings.insert(0, "there are no weights".to_owned());
        }
        Ok(Self { name: files.model_name(), config_json, has_weights, tokenizer_bytes, warnings })
    }
}

fn config_json(files: &ModelFiles) -> Result<String, CheckpointError> {
    files.read_text("config.json")?.ok_or_else(|| CheckpointError::file(&files.place(), "there is no config.json"))
}

/// One weight file, for people.
#[derive(Debug)]
pub struct WeightFile {
    /// Name without its folder.
    pub name: String,
    /// Size.
    pub bytes: u64,
    /// Tensors of the text model in it.
    pub tensors: usize,
    /// Offset of the first tensor of the text model.
    pub data_start: u64,
}

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
        let config_json = config_json(&files)?;
        let config = Config::parse(&config_json)?;
        let quantization = Quantization::parse(&config_json)?;
        let generation_config = match files.read_text("generation_config.json")? {
            Some(json) => GenerationConfig::parse(&json)?,
            None => GenerationConfig::default(),
        };
        let shards = Shards::open(&files)?;
        let layout = Layout::of(&shards.tensors, &config);
        let this = Self { files, config, quantization, shards, layout, taken: BTreeSet::new(), generation_config };
        this.check_names()?;
        Ok(this)
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

    /// Whose convention the files follow, in words.
    pub fn layout_name(&self) -> &'static str {
        self.layout.name()
    }

    /// The weight files with what is in them.
    pub fn weight_file_summaries(&self) -> Vec<WeightFile> {
        let summary = |(number, file): (usize, &Arc<MappedFile>)| {
            let here = self.shards.tensors.values().filter(|entry| entry.slice.file as usize == number);
            WeightFile {
                name: Path::new(file.name()).file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned()),
                bytes: file.bytes().len() as u64,
                tensors: here.clone().count(),
                data_start: here.map(|entry| entry.slice.offset).min().unwrap_or(0),
            }
        };
        self.shards.files.iter().enumerate().map(summary).collect()
    }

    /// Tensors of the vision tower and the draft head in these files, and their bytes.
    pub fn skipped(&self) -> (usize, u64) {
        self.shards.skipped
    }

    /// What is odd about the files, one sentence each; to be asked when the model has taken its own.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings: Vec<String> = self.quantization.warning().into_iter().map(str::to_owned).collect();
        let unknown = self.unknown();
        if unknown.is_empty() {
            return warnings;
        }
        // A name in a file may hold anything, and this goes to a terminal.
        let shown = unknown.iter().take(5).map(|name| name.escape_debug().to_string()).collect::<Vec<_>>().join(", ");
        let more = if unknown.len() > 5 { ", …" } else { "" };
        warnings.push(format!("{} tensors are not part of this model and were ignored: {shown}{more}", unknown.len()));
        warnings
    }

    /// Names of the text model's tensors that nobody has asked for so far, ascending.
    pub fn unknown(&self) -> Vec<&str> {
        self.shards.tensors.keys().filter(|name| !self.taken.contains(*name)).map(String::as_str).collect()
    }
}
