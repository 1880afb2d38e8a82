//! The opened model as a [`TensorSource`]: each tensor is checked against the shape that the model asks for and against
//! the config's quantization block before its bytes are named.

use std::sync::Arc;

use half::{bf16, f16};
use lily_kernels::mapped::MappedFile;
use lily_kernels::tensor::{DType, Format, Matrix, Stored};

use super::header::Entry;
use super::layout::Stack;
use super::quantization::{AffineParams, Stated};
use super::{Checkpoint, CheckpointError, TensorSource, Vector};

/// Affine storage that MLX writes.
const READABLE_BITS: [u8; 6] = [2, 3, 4, 5, 6, 8];
const READABLE_GROUPS: [u16; 3] = [32, 64, 128];

impl TensorSource for Checkpoint {
    fn has(&self, path: &str) -> bool {
        self.shards.tensors.contains_key(&format!("{}.weight", self.layout.module(path)))
    }

    fn matrix(
        &mut self,
        path: &str,
        experts: Option<usize>,
        rows: usize,
        cols: usize,
    ) -> Result<Matrix, CheckpointError> {
        let Some(experts) = experts else {
            return self.module(&Asked { module: self.layout.module(path), experts: None, rows, cols });
        };
        match self.layout.stack(path, |name| self.shards.tensors.contains_key(name)) {
            Stack::Whole(module) => self.module(&Asked { module, experts: Some(experts), rows, cols }),
            Stack::Part { tensor, part, parts } => {
                let weight = self.take(&tensor)?;
                let dtype = weight.float()?;
                weight.expect_shape(&[experts, parts * rows, cols])?;
                let all = Stored { weight: weight.entry.slice, affine: None };
                let stack = (0..experts).map(|expert| all.part(expert * parts + part, experts * parts)).collect();
                Ok(Matrix { rows, cols, format: Format::Dense(dtype), stack, expanded: None })
            }
            Stack::Separate => self.separate(path, experts, rows, cols),
        }
    }

    fn vector(&mut self, path: &str, shape: &[usize]) -> Result<Vector, CheckpointError> {
        let tensor = self.take(&self.layout.tensor(path))?;
        let stored = tensor.float()?;
        tensor.expect_shape(&self.layout.shape(path, shape))?;
        let mut values = widen(self.shards.bytes(tensor.entry.slice), stored);
        let shift = self.layout.shift(path);
        if shift != 0.0 {
            values.iter_mut().for_each(|value| *value += shift);
        }
        Ok(Vector { values, stored })
    }
}

impl Checkpoint {
    /// A tensor by its name in the files; from now on it is known.
    fn take(&mut self, name: &str) -> Result<Tensor, CheckpointError> {
        let Some(entry) = self.shards.tensors.get(name) else {
            return Err(CheckpointError::Missing { model: self.files.place(), tensor: name.to_owned() });
        };
        self.taken.insert(name.to_owned());
        let file = Arc::clone(&self.shards.files[entry.slice.file as usize]);
        Ok(Tensor { file, entry: entry.clone() })
    }

    /// A stack whose experts are modules of their own.
    fn separate(&mut self, path: &str, experts: usize, rows: usize, cols: usize) -> Result<Matrix, CheckpointError> {
        let mut stack = Vec::with_capacity(experts);
        let mut first: Option<(Format, String)> = None;
        for expert in 0..experts {
            let module = self.layout.expert(path, expert);
            let matrix = self.module(&Asked { module: module.clone(), experts: None, rows, cols })?;
            let (format, other) = first.get_or_insert((matrix.format, module.clone()));
            if matrix.format != *format {
                let weight = self.take(&format!("{module}.weight"))?;
                return Err(weight.refuse(format!("is stored in another format than {other}.weight")));
            }
            stack.extend_from_slice(&matrix.stack);
        }
        match first {
            Some((format, _)) => Ok(Matrix { rows, cols, format, stack: stack.into(), expanded: None }),
            None => unreachable!("a stack has at least one expert"),
        }
    }

    /// The files decide what is quantized; the config only says how.
    fn module(&mut self, asked: &Asked) -> Result<Matrix, CheckpointError> {
        if self.shards.tensors.contains_key(&format!("{}.scales", asked.module)) {
            self.affine(asked)
        } else {
            self.dense(asked)
        }
    }

    fn dense(&mut self, asked: &Asked) -> Result<Matrix, CheckpointError> {
        let module = &asked.module;
        let weight = self.take(&format!("{module}.weight"))?;
        if weight.entry.dtype == safetensors::Dtype::U32 {
            return Err(weight.refuse(format!("holds packed codes, but there is no {module}.scales")));
        }
        if let Stated::Named(params) = self.quantization.lookup(module) {
            return Err(weight.refuse(format!("is not quantized, but config.json says {params}")));
        }
        let dtype = weight.float()?;
        weight.expect_shape(&asked.shape())?;
        Ok(asked.matrix(Format::Dense(dtype), Stored { weight: weight.entry.slice, affine: None }))
    }

    fn affine(&mut self, asked: &Asked) -> Result<Matrix, CheckpointError> {
        let module = &asked.module;
        let weight = self.take(&format!("{module}.weight"))?;
        let scales = self.take(&format!("{module}.scales"))?;
        let biases = self.take(&format!("{module}.biases"))?;
        if weight.entry.dtype != safetensors::Dtype::U32 {
            return Err(weight.refuse(format!("has scales, but is {} instead of U32", weight.entry.dtype)));
        }
        let scale = scales.float()?;
        if (biases.entry.dtype, &biases.entry.shape) != (scales.entry.dtype, &scales.entry.shape) {
            return Err(biases.refuse(format!(
                "is {} {:?}, but its scales are {} {:?}",
                biases.entry.dtype, biases.entry.shape, scales.entry.dtype, scales.entry.shape
            )));
        }
        let params = asked.params(&weight, &scales)?;
        match self.quantization.lookup(module) {
            Stated::Nothing => {}
            Stated::Default(stated) | Stated::Named(stated) if stated == params => {}
            Stated::Default(stated) | Stated::Named(stated) => {
                return Err(weight.refuse(format!(
                    "and its scales have shapes {:?} and {:?}, which mean {params}, but config.json says {stated}",
                    weight.entry.shape, scales.entry.shape
                )));
            }
            Stated::Dense => return Err(weight.refuse("has scales, but config.json says it is not quantized")),
        }
        if !READABLE_BITS.contains(&params.bits) || !READABLE_GROUPS.contains(&params.group) {
            let readable = "2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128";
            return Err(weight.refuse(format!("has {params}; Lily reads {readable}")));
        }
        let format = Format::Affine { bits: params.bits, group: params.group, scale };
        let affine = Some((scales.entry.slice, biases.entry.slice));
        Ok(asked.matrix(format, Stored { weight: weight.entry.slice, affine }))
    }
}

/// A matrix as the model asks for it, at its place in the files.
struct Asked {
    module: String,
    experts: Option<usize>,
    rows: usize,
    cols: usize,
}

impl Asked {
    fn shape(&self) -> Vec<usize> {
        self.experts.into_iter().chain([self.rows, self.cols]).collect()
    }

    fn matrix(&self, format: Format, stored: Stored) -> Matrix {
        Matrix::stacked(self.experts.unwrap_or(1), self.rows, self.cols, format, stored)
    }

    /// Bits and group that the shapes of codes `[.., words]` and scales `[.., groups]` mean for this matrix.
    fn params(&self, weight: &Tensor, scales: &Tensor) -> Result<AffineParams, CheckpointError> {
        let cols = self.cols;
        let outer: Vec<usize> = self.experts.into_iter().chain([self.rows]).collect();
        let words = weight.inner(&outer).ok_or_else(|| {
            let found = &weight.entry.shape;
            weight.refuse(format!("has shape {found:?}, but config.json makes it {outer:?} rows of packed codes"))
        })?;
        let groups = scales.inner(&outer).ok_or_else(|| {
            let (found, codes) = (&scales.entry.shape, &weight.entry.shape);
            scales.refuse(format!("has shape {found:?}, which does not fit codes of shape {codes:?}"))
        })?;
        let bits = words.checked_mul(32).and_then(|bits| quotient(bits, cols));
        let bits = bits.and_then(|bits| u8::try_from(bits).ok()).filter(|bits| (1..=8).contains(bits));
        let group = quotient(cols, groups).and_then(|group| u16::try_from(group).ok());
        match (bits, group) {
            (Some(bits), Some(group)) => Ok(AffineParams { bits, group }),
            (None, _) => {
                Err(weight.refuse(format!("has {words} words in each row of {cols} inputs, not 1 to 8 bits for each")))
            }
            (_, None) => {
                Err(scales.refuse(format!("has {groups} scales in each row of {cols} inputs, not one for each group")))
            }
        }
    }
}

/// The quotient of a division without remainder.
fn quotient(dividend: usize, divisor: usize) -> Option<usize> {
    (divisor > 0 && dividend.is_multiple_of(divisor)).then(|| dividend / divisor)
}

/// A tensor and the file it is in.
struct Tensor {
    file: Arc<MappedFile>,
    entry: Entry,
}

impl Tensor {
    fn refuse(&self, problem: impl Into<String>) -> CheckpointError {
        CheckpointError::tensor(self.file.name(), &self.entry.name, problem)
    }

    /// The last dimension, if the others are `outer`.
    fn inner(&self, outer: &[usize]) -> Option<usize> {
        let (last, found) = self.entry.shape.split_last()?;
        (found == outer).then_some(*last)
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
            Err(self.refuse(format!("is {dtype}; Lily reads F32, BF16 and F16 here")))
        }
    }

    fn expect_shape(&self, shape: &[usize]) -> Result<(), CheckpointError> {
        if self.entry.shape == shape {
            return Ok(());
        }
        Err(self.refuse(format!("has shape {:?}, but config.json makes it {shape:?}", self.entry.shape)))
    }
}

/// Little-endian elements at any alignment → f32, exactly.
fn widen(bytes: &[u8], dtype: DType) -> Vec<f32> {
    let halves = |to_f32: fn([u8; 2]) -> f32| bytes.as_chunks().0.iter().map(|element| to_f32(*element)).collect();
    match dtype {
        DType::Bf16 => halves(|element| bf16::from_le_bytes(element).to_f32()),
        DType::F16 => halves(|element| f16::from_le_bytes(element).to_f32()),
        DType::F32 => bytes.as_chunks().0.iter().map(|element| f32::from_le_bytes(*element)).collect(),
        DType::U32 | DType::I32 | DType::I8 | DType::U8 => unreachable!("`Tensor::float` lets floats through only"),
    }
}
