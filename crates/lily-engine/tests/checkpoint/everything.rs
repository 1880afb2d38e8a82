//! The list of all tensors that the model asks for, taken from a checkpoint.

use lily_engine::checkpoint::{Checkpoint, CheckpointError, TensorSource};
use lily_engine::model::config::{Config, LayerType};
use lily_kernels::tensor::{FileSlice, Matrix};

/// Every tensor of a model, as its forward pass will ask for it.
pub struct Everything {
    pub matrices: Vec<(String, Matrix)>,
    pub vectors: Vec<(String, Vec<f32>)>,
}

/// The bytes of an affine matrix's tensors, all experts together.
pub fn parts_of(checkpoint: &Checkpoint, matrix: &Matrix) -> [(&'static str, Vec<u8>); 3] {
    let stack = || matrix.stack.iter();
    let all = |slices: Vec<FileSlice>| slices.into_iter().flat_map(|slice| checkpoint.bytes(slice).to_vec()).collect();
    [
        ("weight", all(stack().map(|stored| stored.weight).collect())),
        ("scales", all(stack().map(|stored| stored.affine.unwrap().0).collect())),
        ("biases", all(stack().map(|stored| stored.affine.unwrap().1).collect())),
    ]
}

impl Everything {
    pub fn of(config: &Config, source: &mut dyn TensorSource) -> Result<Self, CheckpointError> {
        let mut all = Self { matrices: Vec::new(), vectors: Vec::new() };
        let (hidden, vocab) = (config.hidden_size, config.vocab_size);
        all.matrix(source, "embed_tokens", None, vocab, hidden)?;
        for (layer, kind) in config.layer_types.iter().enumerate() {
            all.layer(config, source, &format!("layers.{layer}"), *kind)?;
        }
        all.vector(source, "norm.weight", &[hidden])?;
        all.matrix(source, "lm_head", None, vocab, hidden)?;
        Ok(all)
    }

    fn layer(
        &mut self,
        config: &Config,
        source: &mut dyn TensorSource,
        layer: &str,
        kind: LayerType,
    ) -> Result<(), CheckpointError> {
        let hidden = config.hidden_size;
        self.vector(source, &format!("{layer}.input_layernorm.weight"), &[hidden])?;
        match kind {
            LayerType::LinearAttention => {
                let (heads, values) = (config.linear_num_value_heads, config.linear_value_dim());
                let (channels, taps) = (config.linear_conv_dim(), config.linear_conv_kernel_dim);
                let mixer = format!("{layer}.linear_attn");
                self.matrix(source, &format!("{mixer}.in_proj_qkv"), None, channels, hidden)?;
                self.matrix(source, &format!("{mixer}.in_proj_z"), None, values, hidden)?;
                self.matrix(source, &format!("{mixer}.in_proj_b"), None, heads, hidden)?;
                self.matrix(source, &format!("{mixer}.in_proj_a"), None, heads, hidden)?;
                self.vector(source, &format!("{mixer}.conv1d.weight"), &[channels, taps])?;
                self.vector(source, &format!("{mixer}.A_log"), &[heads])?;
                self.vector(source, &format!("{mixer}.dt_bias"), &[heads])?;
                self.vector(source, &format!("{mixer}.norm.weight"), &[config.linear_value_head_dim])?;
                self.matrix(source, &format!("{mixer}.out_proj"), None, hidden, values)?;
            }
            LayerType::FullAttention => {
                let width = config.num_attention_heads * config.head_dim;
                let kv_width = config.num_key_value_heads * config.head_dim;
                let mixer = format!("{layer}.self_attn");
                self.matrix(source, &format!("{mixer}.q_proj"), None, 2 * width, hidden)?;
                self.matrix(source, &format!("{mixer}.k_proj"), None, kv_width, hidden)?;
                self.matrix(source, &format!("{mixer}.v_proj"), None, kv_width, hidden)?;
                self.vector(source, &format!("{mixer}.q_norm.weight"), &[config.head_dim])?;
                self.vector(source, &format!("{mixer}.k_norm.weight"), &[config.head_dim])?;
                self.matrix(source, &format!("{mixer}.o_proj"), None, hidden, width)?;
            }
        }
        self.vector(source, &format!("{layer}.post_attention_layernorm.weight"), &[hidden])?;
        self.experts(config, source, &format!("{layer}.mlp"))
    }

    fn experts(&mut self, config: &Config, source: &mut dyn TensorSource, mlp: &str) -> Result<(), CheckpointError> {
        let hidden = config.hidden_size;
        self.matrix(source, &format!("{mlp}.gate"), None, config.num_experts, hidden)?;
        self.matrix(source, &format!("{mlp}.shared_expert_gate"), None, 1, hidden)?;
        let routed = (format!("{mlp}.experts"), Some(config.num_experts), config.moe_intermediate_size);
        let shared = (format!("{mlp}.shared_expert"), None, config.shared_expert_intermediate_size);
        for (path, experts, inner) in [routed, shared] {
            self.matrix(source, &format!("{path}.gate_proj"), experts, inner, hidden)?;
            self.matrix(source, &format!("{path}.up_proj"), experts, inner, hidden)?;
            self.matrix(source, &format!("{path}.down_proj"), experts, hidden, inner)?;
        }
        Ok(())
    }

    fn matrix(
        &mut self,
        source: &mut dyn TensorSource,
        path: &str,
        experts: Option<usize>,
        rows: usize,
        cols: usize,
    ) -> Result<(), CheckpointError> {
        let matrix = source.matrix(path, experts, rows, cols)?;
        assert_eq!((matrix.experts(), matrix.rows, matrix.cols), (experts.unwrap_or(1), rows, cols), "{path}");
        self.matrices.push((path.to_owned(), matrix));
        Ok(())
    }

    fn vector(&mut self, source: &mut dyn TensorSource, path: &str, shape: &[usize]) -> Result<(), CheckpointError> {
        let values = source.vector(path, shape)?.values;
        assert_eq!(values.len(), shape.iter().product::<usize>(), "{path}");
        self.vectors.push((path.to_owned(), values));
        Ok(())
    }
}
