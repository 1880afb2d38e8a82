//! Flow 4: a model's files become its config and its tensors. The only place that bends a layout: the model asks in
//! Hugging Face's names and shapes, this module knows where checkpoints of each kind keep them.
//! Reads headers and small vectors; matrices stay where they are and are named by byte range.

mod cache;
mod declared;
mod error;
mod files;
mod header;
mod layout;
mod open;
mod quantization;
mod shards;
mod source;
mod tensors;
mod unused;

use lily_kernels::tensor::{DType, Matrix};

pub use cache::cached_model;
pub use declared::Declared;
pub use error::CheckpointError;
pub use open::{Checkpoint, ModelFolder, WeightFile};
pub use quantization::{AffineParams, Quantization, Stated};
pub use shards::{INDEX_FILE, WEIGHT_FILE, indexed_files};
pub use source::{EmbeddedModel, ModelSource};

/// Where a model takes its tensors from.
///
/// Paths are Hugging Face's without their prefix. Matrices are named as modules (`embed_tokens`, `lm_head`,
/// `layers.0.linear_attn.in_proj_qkv`, `layers.0.mlp.gate`, `layers.0.mlp.shared_expert.up_proj`; the experts of a layer
/// as one stack, `layers.0.mlp.experts.{gate,up,down}_proj`), vectors as tensors (`norm.weight`,
/// `layers.0.input_layernorm.weight`, `layers.0.linear_attn.A_log`, `layers.0.linear_attn.conv1d.weight`).
pub trait TensorSource {
    /// Whether there is a matrix of this path: some models fuse the projections of a layer.
    fn has(&self, path: &str) -> bool;

    /// A matrix `[rows, cols]`, or with `experts` a stack `[experts, rows, cols]`, as it is stored. With tied
    /// embeddings `lm_head` is `embed_tokens`.
    ///
    /// # Errors
    /// The tensor is missing, has another shape, is stored in a way that Lily does not read, or contradicts the
    /// config's quantization block.
    fn matrix(
        &mut self,
        path: &str,
        experts: Option<usize>,
        rows: usize,
        cols: usize,
    ) -> Result<Matrix, CheckpointError>;

    /// A small tensor of the given shape, widened to f32, last axis fastest. The convolution's taps are
    /// `[channels, taps]`, oldest tap first; norm weights are the factors themselves.
    ///
    /// # Errors
    /// The tensor is missing, has another shape, or is not f32, bf16 or f16.
    fn vector(&mut self, path: &str, shape: &[usize]) -> Result<Vector, CheckpointError>;
}

/// A small tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Vector {
    /// Elements, as the model uses them.
    pub values: Vec<f32>,
    /// Element type in the file.
    pub stored: DType,
}
