//! An opened model: its config, its other files, and its tensors.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use half::{bf16, f16};
use lily_kernels::mapped::MappedFile;
use lily_kernels::tensor::{DType, FileSlice, Format, Matrix};

use super::files::ModelFiles;
use super::header::Entry;
use super::quantization::{AffineParams, Quantization, Stated};
use super::shards::Shards;
use super::{CheckpointError, TensorSource, layout};
use crate::engine::ModelSource;
use crate::model::config::{Config, GenerationConfig, union};

/// Storage that the kernels read.
const READABLE_BITS: [u8; 2] = [4, 8];
const READABLE_GROUP: u16 = 64;

/// A model's files, opened and checked against each other. Weights are mapped, not read.
#[derive(Debug)]
pub struct Checkpoint {
    folder: ModelFiles,
    name: String,
    config: Config,
    generation: GenerationConfig,
    quantization: Quantization,
    shards: Shards,
    taken: BTreeSet<String>,
}

impl Checkpoint {
    /// Opens a folder with `config.json` and `model.safetensors` (or `model.safetensors.index.json` and its shards), or
    /// an embedded model of the same files.
    ///
    /// # Errors
    /// One sentence naming the file and the field or tensor.
    pub fn open(source: &ModelSource) -> Result<Self, CheckpointError> {
        let folder = ModelFiles::open(source)?;
        let config_json = folder
            .read_text("config.json")?
            .ok_or_else(|| CheckpointError::file(&folder.place(), "there is no config.json"))?;
        let config = Config::parse(&config_json)?;
        let quantization = Quantization::parse(&config_json)?;
        let generation = match folder.read_text("generation_config.json")? {
            Some(json) => GenerationConfig::parse(&json)?,
            None => GenerationConfig::default(),
        };
        let shards = Shards::open(&folder)?;
        let name = folder.model_name();
        Ok(Self { folder, name, config, generation, quantization, shards, taken: BTreeSet::new() })
    }

    /// Repository, folder or embedded model, for people.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `config.json`.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// `generation_config.json`, or the defaults.
    pub fn generation_config(&self) -> &GenerationConfig {
        &self.generation
    }

    /// Ids that end a turn, ascending: the config's and the generation config's.
    pub fn eos_token_ids(&self) -> Vec<u32> {
        union(self.config.eos_token_ids.clone(), self.generation.eos_token_ids.clone())
    }

    /// Another file of the model, whole (`tokenizer.json`, `chat_template.jinja`, ...); `None` if there is none of that
    /// name.
    ///
    /// # Errors
    /// The file is there and cannot be read.
    pub fn file(&self, name: &str) -> Result<Option<Cow<'static, [u8]>>, CheckpointError> {
        self.folder.read(name)
    }

    /// The mapped weight files; [`FileSlice::file`] counts in this list.
    pub fn files(&self) -> &[Arc<MappedFile>] {
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

    /// The entry of a tensor, which is no longer unknown.
    fn take(&mut self, name: &str) -> Result<Stored, CheckpointError> {
        let Some(entry) = self.shards.tensors.get(name) else {
            return Err(CheckpointError::Missing { model: self.folder.place(), tensor: name.to_owned() });
        };
        self.taken.insert(name.to_owned());
        let file = self.shards.files[entry.slice.file as usize].clone();
        Ok(Stored { file, entry: entry.clone() })
    }

    fn dense(&mut self, module: &str, shape: &[usize]) -> Result<(Format, Tensors), CheckpointError> {
        let weight = self.take(&format!("{module}.weight"))?;
        if weight.entry.dtype == safetensors::Dtype::U32 {
            return Err(weight.refuse(format!("holds packed codes, but there is no {module}.scales")));
        }
        if let Stated::Named(params) = self.quantization.lookup(module) {
            return Err(weight.refuse(format!("is not quantized, but config.json says {params}")));
        }
        let dtype = weight.float()?;
        weight.expect_shape(shape)?;
        Ok((Format::Dense(dtype), Tensors { weight: weight.entry.slice, affine: None }))
    }

    fn affine(&mut self, module: &str, shape: &[usize]) -> Result<(Format, Tensors), CheckpointError> {
        let weight = self.take(&format!("{module}.weight"))?;
        let scales = self.take(&format!("{module}.scales"))?;
        let biases = self.take(&format!("{module}.biases"))?;
        if weight.entry.dtype != safetensors::Dtype::U32 {
            return Err(weight.refuse(format!("has scales, but is {} instead of U32", weight.entry.dtype)));
        }
        let scale = scales.float()?;
        if biases.entry.dtype != scales.entry.dtype || biases.entry.shape != scales.entry.shape {
            return Err(biases.refuse(format!(
                "is {} {:?}, but its scales are {} {:?}",
                biases.entry.dtype, biases.entry.shape, scales.entry.dtype, scales.entry.shape
            )));
        }
        let params = shape_params(&weight, &scales, shape)?;
        match self.quantization.lookup(module) {
            Stated::Nothing => {}
            Stated::Default(stated) | Stated::Named(stated) if stated == params => {}
            Stated::Default(stated) | Stated::Named(stated) => {
                return Err(weight.refuse(format!(
                    "and its scales have shapes {:?} and {:?}, which mean {params}, but config.json says {stated}",
                    weight.entry.shape, scales.entry.shape
                )));
            }
            Stated::Dense => {
                return Err(weight.refuse("has scales, but config.json says it is not quantized"));
            }
        }
        if !READABLE_BITS.contains(&params.bits) || params.group != READABLE_GROUP {
            return Err(weight.refuse(format!("has {params}; Lily reads 4 or 8 bits in groups of 64")));
        }
        let format = Format::Affine { bits: params.bits, group: params.group, scale };
        let affine = Some((scales.entry.slice, biases.entry.slice));
        Ok((format, Tensors { weight: weight.entry.slice, affine }))
    }
}

impl TensorSource for Checkpoint {
    fn matrix(
        &mut self,
        path: &str,
        experts: Option<usize>,
        rows: usize,
        cols: usize,
    ) -> Result<Matrix, CheckpointError> {
        let path = if path == "lm_head" && self.config.tie_word_embeddings { "embed_tokens" } else { path };
        let module = layout::stored_name(path);
        let shape: Vec<usize> = experts.into_iter().chain([rows, cols]).collect();
        let (format, Tensors { weight, affine }) = if self.shards.tensors.contains_key(&format!("{module}.scales")) {
            self.affine(&module, &shape)?
        } else {
            self.dense(&module, &shape)?
        };
        Ok(Matrix { experts: experts.unwrap_or(1), rows, cols, format, weight, affine })
    }

    fn vector(&mut self, path: &str, shape: &[usize]) -> Result<Vec<f32>, CheckpointError> {
        let stored = self.take(&layout::stored_name(path))?;
        let dtype = stored.float()?;
        stored.expect_shape(&layout::stored_shape(path, shape))?;
        Ok(widen(self.shards.bytes(stored.entry.slice), dtype))
    }
}

/// Where a matrix lies.
struct Tensors {
    weight: FileSlice,
    affine: Option<(FileSlice, FileSlice)>,
}

/// A tensor and the file it is in, for the sentences about it.
struct Stored {
    file: Arc<MappedFile>,
    entry: Entry,
}

impl Stored {
    fn refuse(&self, problem: impl Into<String>) -> CheckpointError {
        CheckpointError::tensor(self.file.name(), &self.entry.name, problem)
    }

    fn float(&self) -> Result<DType, CheckpointError> {
        let dtype = self.entry.dtype;
        if dtype == safetensors::Dtype::F32 {
            Ok(DType::F32)
        } else if dtype == safetensors::Dtype::BF16 {
            Ok(DType::Bf16)
        } else if dtype == safetensors::Dtype::F16 {
            Ok(DType::F16)
        } else {
            Err(self.refuse(format!("is {dtype}; Lily reads F32, BF16 and F16")))
        }
    }

    fn expect_shape(&self, shape: &[usize]) -> Result<(), CheckpointError> {
        if self.entry.shape == shape {
            return Ok(());
        }
        Err(self.refuse(format!("has shape {:?}, but config.json makes it {shape:?}", self.entry.shape)))
    }
}

/// Bits and group that the shapes of codes and scales mean for a matrix of this shape.
fn shape_params(weight: &Stored, scales: &Stored, shape: &[usize]) -> Result<AffineParams, CheckpointError> {
    let (codes, groups) = (&weight.entry.shape, &scales.entry.shape);
    let (Some((cols, leading)), Some((words, codes_leading)), Some((groups_in_row, groups_leading))) =
        (shape.split_last(), codes.split_last(), groups.split_last())
    else {
        return Err(weight.refuse(format!("has shape {codes:?}, but config.json makes it {shape:?} before packing")));
    };
    if codes_leading != leading {
        return Err(weight.refuse(format!("has shape {codes:?}, but config.json makes it {shape:?} before packing")));
    }
    if groups_leading != leading {
        return Err(scales.refuse(format!("has shape {groups:?}, which does not fit codes of shape {codes:?}")));
    }
    let exact =
        |dividend: usize, divisor: usize| (divisor > 0 && dividend.is_multiple_of(divisor)).then(|| dividend / divisor);
    let bits = words.checked_mul(32).and_then(|bits| exact(bits, *cols)).filter(|bits| (1..=8).contains(bits));
    let group = exact(*cols, *groups_in_row).and_then(|group| u16::try_from(group).ok());
    match (bits, group) {
        (Some(bits), Some(group)) => Ok(AffineParams { bits: bits as u8, group }),
        (None, _) => {
            Err(weight.refuse(format!("has {words} words in a row, no whole number of bits for {cols} inputs")))
        }
        (_, None) => {
            Err(scales.refuse(format!("has {groups_in_row} scales in a row, no whole groups of {cols} inputs")))
        }
    }
}

/// Little-endian elements at any alignment → f32, exactly.
fn widen(bytes: &[u8], dtype: DType) -> Vec<f32> {
    let halves = |to_f32: fn([u8; 2]) -> f32| bytes.as_chunks::<2>().0.iter().map(|b| to_f32(*b)).collect();
    match dtype {
        DType::Bf16 => halves(|b| bf16::from_le_bytes(b).to_f32()),
        DType::F16 => halves(|b| f16::from_le_bytes(b).to_f32()),
        DType::F32 => bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        DType::U32 | DType::I32 | DType::I8 | DType::U8 => {
            unreachable!("`Stored::float` lets floats through only")
        }
    }
}
