//! The model's tensors under their Hugging Face names. Matrices stay where the checkpoint has them; small vectors are
//! widened to f32 and packed into one block of constants.

use lily_kernels::plan::Precision;
use lily_kernels::tensor::{DType, Matrix, Space, Tensor};

use super::config::{Config, LayerType, MlpType};
use crate::checkpoint::{CheckpointError, TensorSource};

/// Constants start on cache lines.
const ALIGN: usize = 64;

/// Everything the forward pass reads.
#[derive(Debug, Clone)]
pub struct Weights {
    /// `[V, D]`.
    pub embed_tokens: Matrix,
    /// One per layer.
    pub layers: Vec<Layer>,
    /// Final norm, `[1, D]`.
    pub norm: Tensor,
    /// `[V, D]`.
    pub lm_head: Matrix,
    /// `[1, rotary_dims / 2]`: `rope_theta^(−2i/rotary_dims)`.
    pub inv_freq: Tensor,
    /// Contents of `Space::Constants`.
    pub constants: Vec<f32>,
}

/// One decoder layer.
#[derive(Debug, Clone)]
pub struct Layer {
    /// `[1, D]`.
    pub input_layernorm: Tensor,
    /// Token mixing.
    pub mixer: Mixer,
    /// `[1, D]`.
    pub post_attention_layernorm: Tensor,
    /// Channel mixing.
    pub mlp: Mlp,
}

/// Token mixing of a layer.
#[derive(Debug, Clone)]
pub enum Mixer {
    /// `linear_attn`.
    GatedDeltaNet(GatedDeltaNet),
    /// `self_attn`.
    Attention(Attention),
}

/// Gated DeltaNet, SPEC §2.5.
#[derive(Debug, Clone)]
pub struct GatedDeltaNet {
    /// Of the normed input.
    pub in_proj: InProj,
    /// `[taps, channels]`: transposed, so that channels are contiguous.
    pub conv1d: Tensor,
    /// `[1, Hv]`.
    pub a_log: Tensor,
    /// `[1, Hv]`.
    pub dt_bias: Tensor,
    /// `[1, Dv]`, plain.
    pub norm: Tensor,
    /// `[D, Hv·Dv]`.
    pub out_proj: Matrix,
}

/// Input projections of Gated DeltaNet.
#[derive(Debug, Clone)]
pub enum InProj {
    /// Qwen3.5: one matrix for each.
    Apart {
        /// `[2·Hk·Dk + Hv·Dv, D]`: q, k, v, head-major.
        qkv: Matrix,
        /// `[Hv·Dv, D]`.
        z: Matrix,
        /// `[Hv, D]`.
        b: Matrix,
        /// `[Hv, D]`.
        a: Matrix,
    },
    /// Qwen3-Next: for each key head, the rows of all that belong to it.
    Fused {
        /// `[2·Hk·Dk + 2·Hv·Dv, D]`: q, k, v, z of each key head.
        qkvz: Matrix,
        /// `[2·Hv, D]`: b, a of each key head.
        ba: Matrix,
    },
}

/// Gated attention, SPEC §2.4.
#[derive(Debug, Clone)]
pub struct Attention {
    /// `[Hq·2·head_dim, D]`: query and gate interleaved per head.
    pub q_proj: Matrix,
    /// `[Hkv·head_dim, D]`.
    pub k_proj: Matrix,
    /// `[Hkv·head_dim, D]`.
    pub v_proj: Matrix,
    /// `[D, Hq·head_dim]`.
    pub o_proj: Matrix,
    /// `[1, head_dim]`.
    pub q_norm: Tensor,
    /// `[1, head_dim]`.
    pub k_norm: Tensor,
}

/// Channel mixing of a layer.
#[derive(Debug, Clone)]
pub enum Mlp {
    /// One gated MLP.
    Dense(Box<DenseMlp>),
    /// Experts.
    Sparse(Box<SparseMoe>),
}

/// Gated MLP, SPEC §5.
#[derive(Debug, Clone)]
pub struct DenseMlp {
    /// `[I, D]`.
    pub gate_proj: Matrix,
    /// `[I, D]`.
    pub up_proj: Matrix,
    /// `[D, I]`.
    pub down_proj: Matrix,
}

/// Mixture of experts with a shared one, SPEC §2.6.
#[derive(Debug, Clone)]
pub struct SparseMoe {
    /// Router, `[E, D]`.
    pub gate: Matrix,
    /// `[E, I, D]`.
    pub experts_gate_proj: Matrix,
    /// `[E, I, D]`.
    pub experts_up_proj: Matrix,
    /// `[E, D, I]`.
    pub experts_down_proj: Matrix,
    /// `[Is, D]`.
    pub shared_gate_proj: Matrix,
    /// `[Is, D]`.
    pub shared_up_proj: Matrix,
    /// `[D, Is]`.
    pub shared_down_proj: Matrix,
    /// `[1, D]`.
    pub shared_expert_gate: Matrix,
}

/// Asks a source for tensors and packs the constants.
struct Loader<'a> {
    source: &'a mut dyn TensorSource,
    constants: Vec<f32>,
}

impl Loader<'_> {
    fn constant(&mut self, rows: usize, cols: usize, values: &[f32]) -> Tensor {
        let start = self.constants.len().next_multiple_of(ALIGN / size_of::<f32>());
        self.constants.resize(start, 0.0);
        self.constants.extend_from_slice(values);
        Tensor { space: Space::Constants, offset: start * size_of::<f32>(), rows, cols, dtype: DType::F32 }
    }

    fn vector(&mut self, path: &str, len: usize) -> Result<Tensor, CheckpointError> {
        let values = self.source.vector(path, &[len])?.values;
        Ok(self.constant(1, len, &values))
    }

    fn matrix(&mut self, path: &str, rows: usize, cols: usize) -> Result<Matrix, CheckpointError> {
        self.source.matrix(path, None, rows, cols)
    }
}

impl Weights {
    /// Takes every tensor of the text model.
    ///
    /// # Errors
    /// A tensor is missing or is not what the config says.
    pub fn load(config: &Config, source: &mut dyn TensorSource) -> Result<Self, CheckpointError> {
        let mut l = Loader { source, constants: Vec::new() };
        let (d, v) = (config.hidden_size, config.vocab_size);
        let embed_tokens = l.matrix("embed_tokens", v, d)?;
        let layers = (0..config.num_hidden_layers)
            .map(|i| Layer::load(config, &mut l, i))
            .collect::<Result<Vec<_>, CheckpointError>>()?;
        let norm = l.vector("norm.weight", d)?;
        let lm_head = l.matrix("lm_head", v, d)?;
        let inv_freq = inv_freq(config.rope_theta, config.rotary_dims());
        let inv_freq = l.constant(1, inv_freq.len(), &inv_freq);
        Ok(Self { embed_tokens, layers, norm, lm_head, inv_freq, constants: l.constants })
    }
}

fn inv_freq(theta: f64, rotary_dims: usize) -> Vec<f32> {
    (0..rotary_dims / 2).map(|i| theta.powf(-2.0 * i as f64 / rotary_dims as f64) as f32).collect()
}

impl Layer {
    fn load(config: &Config, l: &mut Loader, index: usize) -> Result<Self, CheckpointError> {
        let (at, d) = (format!("layers.{index}"), config.hidden_size);
        Ok(Self {
            input_layernorm: l.vector(&format!("{at}.input_layernorm.weight"), d)?,
            mixer: match config.layer_types[index] {
                LayerType::LinearAttention => {
                    Mixer::GatedDeltaNet(GatedDeltaNet::load(config, l, &format!("{at}.linear_attn"))?)
                }
                LayerType::FullAttention => Mixer::Attention(Attention::load(config, l, &format!("{at}.self_attn"))?),
            },
            post_attention_layernorm: l.vector(&format!("{at}.post_attention_layernorm.weight"), d)?,
            mlp: match config.mlp_types[index] {
                MlpType::Dense => {
                    Mlp::Dense(Box::new(DenseMlp::load(l, &format!("{at}.mlp"), d, config.intermediate_size)?))
                }
                MlpType::Sparse => Mlp::Sparse(Box::new(SparseMoe::load(config, l, &format!("{at}.mlp"))?)),
            },
        })
    }
}

impl GatedDeltaNet {
    fn load(config: &Config, l: &mut Loader, at: &str) -> Result<Self, CheckpointError> {
        let (values, heads) = (config.linear_value_dim(), config.linear_num_value_heads);
        let (channels, taps) = (config.linear_conv_dim(), config.linear_conv_kernel_dim);
        let by_channel = l.source.vector(&format!("{at}.conv1d.weight"), &[channels, taps])?.values;
        let by_tap: Vec<f32> = (0..taps).flat_map(|j| by_channel.iter().skip(j).step_by(taps).copied()).collect();
        Ok(Self {
            in_proj: InProj::load(config, l, at)?,
            conv1d: l.constant(taps, channels, &by_tap),
            a_log: l.vector(&format!("{at}.A_log"), heads)?,
            dt_bias: l.vector(&format!("{at}.dt_bias"), heads)?,
            norm: l.vector(&format!("{at}.norm.weight"), config.linear_value_head_dim)?,
            out_proj: l.matrix(&format!("{at}.out_proj"), config.hidden_size, values)?,
        })
    }
}

impl InProj {
    fn load(config: &Config, l: &mut Loader, at: &str) -> Result<Self, CheckpointError> {
        let (d, values, heads) = (config.hidden_size, config.linear_value_dim(), config.linear_num_value_heads);
        let channels = config.linear_conv_dim();
        let fused = format!("{at}.in_proj_qkvz");
        if l.source.has(&fused) {
            let qkvz = l.matrix(&fused, channels + values, d)?;
            return Ok(Self::Fused { qkvz, ba: l.matrix(&format!("{at}.in_proj_ba"), 2 * heads, d)? });
        }
        Ok(Self::Apart {
            qkv: l.matrix(&format!("{at}.in_proj_qkv"), channels, d)?,
            z: l.matrix(&format!("{at}.in_proj_z"), values, d)?,
            b: l.matrix(&format!("{at}.in_proj_b"), heads, d)?,
            a: l.matrix(&format!("{at}.in_proj_a"), heads, d)?,
        })
    }
}

impl Attention {
    fn load(config: &Config, l: &mut Loader, at: &str) -> Result<Self, CheckpointError> {
        let (d, head) = (config.hidden_size, config.head_dim);
        let (q, kv) = (config.num_attention_heads * head, config.num_key_value_heads * head);
        Ok(Self {
            q_proj: l.matrix(&format!("{at}.q_proj"), 2 * q, d)?,
            k_proj: l.matrix(&format!("{at}.k_proj"), kv, d)?,
            v_proj: l.matrix(&format!("{at}.v_proj"), kv, d)?,
            o_proj: l.matrix(&format!("{at}.o_proj"), d, q)?,
            q_norm: l.vector(&format!("{at}.q_norm.weight"), head)?,
            k_norm: l.vector(&format!("{at}.k_norm.weight"), head)?,
        })
    }
}

impl Mlp {
    /// The experts, if there are any.
    pub fn sparse(&self) -> Option<&SparseMoe> {
        match self {
            Self::Dense(_) => None,
            Self::Sparse(experts) => Some(experts),
        }
    }
}

impl DenseMlp {
    fn load(l: &mut Loader, at: &str, d: usize, inner: usize) -> Result<Self, CheckpointError> {
        Ok(Self {
            gate_proj: l.matrix(&format!("{at}.gate_proj"), inner, d)?,
            up_proj: l.matrix(&format!("{at}.up_proj"), inner, d)?,
            down_proj: l.matrix(&format!("{at}.down_proj"), d, inner)?,
        })
    }
}

impl SparseMoe {
    /// Gate and up projection take the same form of their input.
    pub fn gate_up_alike(&self, precision: Precision) -> bool {
        let takes_int8 = |m: &Matrix| precision == Precision::Fast && m.format.takes_int8(m.cols);
        takes_int8(&self.experts_gate_proj) == takes_int8(&self.experts_up_proj)
    }

    fn load(config: &Config, l: &mut Loader, at: &str) -> Result<Self, CheckpointError> {
        let (d, experts) = (config.hidden_size, config.num_experts);
        let (inner, shared) = (config.moe_intermediate_size, config.shared_expert_intermediate_size);
        let mut stack =
            |name: &str, rows, cols| l.source.matrix(&format!("{at}.experts.{name}"), Some(experts), rows, cols);
        Ok(Self {
            experts_gate_proj: stack("gate_proj", inner, d)?,
            experts_up_proj: stack("up_proj", inner, d)?,
            experts_down_proj: stack("down_proj", d, inner)?,
            gate: l.matrix(&format!("{at}.gate"), experts, d)?,
            shared_gate_proj: l.matrix(&format!("{at}.shared_expert.gate_proj"), shared, d)?,
            shared_up_proj: l.matrix(&format!("{at}.shared_expert.up_proj"), shared, d)?,
            shared_down_proj: l.matrix(&format!("{at}.shared_expert.down_proj"), d, shared)?,
            shared_expert_gate: l.matrix(&format!("{at}.shared_expert_gate"), 1, d)?,
        })
    }
}
