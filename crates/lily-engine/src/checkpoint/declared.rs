//! A model that exists as a `config.json` only: every tensor at the size it would have, none with its values.
//! For reports on models that are not on this machine.

use std::collections::BTreeMap;

use lily_kernels::tensor::{DType, FileSlice, Format, Matrix};

use super::quantization::{Quantization, Stated};
use super::{CheckpointError, TensorSource, layout};
use crate::model::config::Config;

/// Tensors at consecutive offsets of one imaginary file, as MLX would write them: matrices quantized as the config says,
/// else bf16; scales, biases and vectors bf16.
#[derive(Debug)]
pub struct Declared {
    config: Config,
    quantization: Quantization,
    bytes: u64,
    matrices: BTreeMap<String, Matrix>,
    vectors: BTreeMap<String, FileSlice>,
}

impl Declared {
    /// Reads the text of a `config.json`.
    ///
    /// # Errors
    /// The config is refused.
    pub fn from_config(config_json: &str) -> Result<Self, CheckpointError> {
        Ok(Self {
            config: Config::parse(config_json)?,
            quantization: Quantization::parse(config_json)?,
            bytes: 0,
            matrices: BTreeMap::new(),
            vectors: BTreeMap::new(),
        })
    }

    /// The config.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Bytes of all tensors asked for so far, each counted once.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The next `bytes` bytes of the imaginary file.
    fn place(&mut self, bytes: usize) -> FileSlice {
        let slice = FileSlice { file: 0, offset: self.bytes, bytes: bytes as u64 };
        self.bytes += slice.bytes;
        slice
    }
}

impl TensorSource for Declared {
    fn matrix(
        &mut self,
        path: &str,
        experts: Option<usize>,
        rows: usize,
        cols: usize,
    ) -> Result<Matrix, CheckpointError> {
        let module = layout::stored_module(path, self.config.tie_word_embeddings);
        if let Some(matrix) = self.matrices.get(&module) {
            return Ok(*matrix);
        }
        let stack = experts.unwrap_or(1);
        let elements = stack * rows * cols;
        let matrix = match self.quantization.lookup(&module) {
            // MLX leaves a matrix alone whose rows are no whole number of groups.
            Stated::Default(params) | Stated::Named(params) if cols.is_multiple_of(params.group.into()) => {
                let weight = self.place(elements * usize::from(params.bits) / 8);
                let scales = elements / usize::from(params.group) * DType::Bf16.bytes();
                let affine = Some((self.place(scales), self.place(scales)));
                let format = Format::Affine { bits: params.bits, group: params.group, scale: DType::Bf16 };
                Matrix { experts: stack, rows, cols, format, weight, affine }
            }
            Stated::Default(_) | Stated::Named(_) | Stated::Dense | Stated::Nothing => {
                let weight = self.place(elements * DType::Bf16.bytes());
                Matrix { experts: stack, rows, cols, format: Format::Dense(DType::Bf16), weight, affine: None }
            }
        };
        self.matrices.insert(module, matrix);
        Ok(matrix)
    }

    /// Ones for norm weights, zeros for everything else.
    fn vector(&mut self, path: &str, shape: &[usize]) -> Result<Vec<f32>, CheckpointError> {
        let elements = shape.iter().product();
        if !self.vectors.contains_key(path) {
            let slice = self.place(elements * DType::Bf16.bytes());
            self.vectors.insert(path.to_owned(), slice);
        }
        let value = if path.ends_with("norm.weight") { 1.0 } else { 0.0 };
        Ok(vec![value; elements])
    }
}
