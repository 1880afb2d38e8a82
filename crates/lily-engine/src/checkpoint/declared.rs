//! A model that exists as a `config.json` only: every tensor at the size it would have, none with its values.
//! For reports on models that are not on this machine.

use std::collections::BTreeMap;

use lily_kernels::tensor::{DType, FileSlice, Format, Matrix, Stored};

use super::layout::{Layout, Stack};
use super::quantization::{Quantization, Stated};
use super::{CheckpointError, TensorSource, Vector};
use crate::model::config::Config;

/// Elements of all vectors together: a hundred times what any model has. They are made here, not read from a file whose
/// length would bound them.
const MAX_VECTORS: usize = 1 << 26;

/// Tensors at consecutive offsets of one imaginary file, as MLX would write them: matrices quantized as the config says,
/// else bf16; scales, biases and vectors bf16.
#[derive(Debug)]
pub struct Declared {
    config: Config,
    layout: Layout,
    quantization: Quantization,
    bytes: u64,
    matrices: BTreeMap<String, Matrix>,
    vectors: BTreeMap<String, FileSlice>,
    vector_elements: usize,
}

impl Declared {
    /// Reads the text of a `config.json`.
    ///
    /// # Errors
    /// The config is refused.
    pub fn from_config(config_json: &str) -> Result<Self, CheckpointError> {
        let config = Config::parse(config_json)?;
        Ok(Self {
            layout: Layout::of_mlx(&config),
            config,
            quantization: Quantization::parse(config_json)?,
            bytes: 0,
            matrices: BTreeMap::new(),
            vectors: BTreeMap::new(),
            vector_elements: 0,
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
    /// Only qwen3_next fuses projections; no field of its config says so.
    fn has(&self, path: &str) -> bool {
        let fused = path.ends_with("in_proj_qkvz") || path.ends_with("in_proj_ba");
        fused == (self.config.model_type == "qwen3_next")
    }

    fn matrix(
        &mut self,
        path: &str,
        experts: Option<usize>,
        rows: usize,
        cols: usize,
    ) -> Result<Matrix, CheckpointError> {
        let module = match (experts, self.layout.stack(path, |_| false)) {
            (Some(_), Stack::Whole(module)) => module,
            _ => self.layout.module(path),
        };
        if let Some(matrix) = self.matrices.get(&module) {
            return Ok(matrix.clone());
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
                Matrix::stacked(stack, rows, cols, format, Stored { weight, affine })
            }
            Stated::Default(_) | Stated::Named(_) | Stated::Dense | Stated::Nothing => {
                let weight = self.place(elements * DType::Bf16.bytes());
                Matrix::stacked(stack, rows, cols, Format::Dense(DType::Bf16), Stored { weight, affine: None })
            }
        };
        self.matrices.insert(module, matrix.clone());
        Ok(matrix)
    }

    /// Ones for norm weights, zeros for everything else.
    fn vector(&mut self, path: &str, shape: &[usize]) -> Result<Vector, CheckpointError> {
        let elements = shape.iter().product();
        if !self.vectors.contains_key(path) {
            self.vector_elements += elements;
            if self.vector_elements > MAX_VECTORS {
                let problem = format!(
                    "norms, gates and convolution taps of more than {MAX_VECTORS} numbers; no model has so many"
                );
                return Err(CheckpointError::file("config.json", problem));
            }
            let slice = self.place(elements * DType::Bf16.bytes());
            self.vectors.insert(path.to_owned(), slice);
        }
        let value = if path.ends_with("norm.weight") { 1.0 } else { 0.0 };
        Ok(Vector { values: vec![value; elements], stored: DType::Bf16 })
    }
}
