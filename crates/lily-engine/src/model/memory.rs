//! Where one sequence's state lives: byte ranges of the recurrent state and of a KV block, per layer.

use lily_kernels::ops::kv_write::KvLayer;
use lily_kernels::plan::Precision;
use lily_kernels::tensor::{DType, Space, Tensor};

use super::config::{Config, LayerType};

/// State ranges start on cache lines.
const ALIGN: usize = 64;

/// One layer's share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LayerMemory {
    /// Gated DeltaNet, ranges of the half that a step reads.
    Recurrent {
        /// `[taps − 1, channels]` f32: the last raw projections.
        conv: Tensor,
        /// `[Hv·Dv, Dk]` f32.
        delta: Tensor,
    },
    /// Attention: a range of each KV block.
    Cache(KvLayer),
}

/// All layers' shares.
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryLayout {
    /// In layer order.
    pub layers: Vec<LayerMemory>,
    /// Bytes of one half of a sequence's recurrent state; also the size of a snapshot.
    pub state_bytes: usize,
    /// Bytes of one KV block: 256 positions of every attention layer.
    pub block_bytes: usize,
}

impl MemoryLayout {
    /// Layout of a model at a precision.
    pub fn new(config: &Config, precision: Precision) -> Self {
        let dtype = match precision {
            Precision::Exact => DType::F32,
            Precision::Fast | Precision::Half => DType::Bf16,
        };
        let (mut state_bytes, mut block_bytes) = (0, 0);
        let mut state = |rows, cols| {
            let t = Tensor { space: Space::StateIn, offset: state_bytes, rows, cols, dtype: DType::F32 };
            state_bytes = (state_bytes + t.bytes()).next_multiple_of(ALIGN);
            t
        };
        let layers = config.layer_types.iter().map(|kind| match kind {
            LayerType::LinearAttention => LayerMemory::Recurrent {
                conv: state(config.linear_conv_kernel_dim - 1, config.linear_conv_dim()),
                delta: state(config.linear_value_dim(), config.linear_key_head_dim),
            },
            LayerType::FullAttention => {
                let layer = KvLayer {
                    offset: block_bytes,
                    heads: config.num_key_value_heads,
                    head_dim: config.head_dim,
                    dtype,
                };
                block_bytes += layer.bytes();
                LayerMemory::Cache(layer)
            }
        });
        let layers = layers.collect();
        Self { layers, state_bytes, block_bytes }
    }
}
