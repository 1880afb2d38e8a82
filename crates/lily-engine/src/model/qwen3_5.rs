//! The mathematics of Qwen3-Next and Qwen3.5/3.6, once, in Hugging Face names; SPEC §2. Records into a plan; knows neither device
//! nor fusion nor precision beyond saying which matmuls are sensitive.

use lily_kernels::plan::Weight::{Bulk, Sensitive};
use lily_kernels::plan::{Logits, Plan, PlanKey, Precision, Program, Recorder};
use lily_kernels::tensor::Tensor;

use super::config::Config;
use super::memory::{LayerMemory, MemoryLayout};
use super::weights::{Attention, DenseMlp, GatedDeltaNet, InProj, Layer, Mixer, Mlp, SparseMoe, Weights};
use crate::checkpoint::{Checkpoint, CheckpointError};

/// A model that can be recorded.
#[derive(Debug, Clone)]
pub struct Qwen3_5 {
    /// Shapes.
    pub config: Config,
    /// Tensors.
    pub weights: Weights,
    /// State and cache.
    pub memory: MemoryLayout,
}

impl Qwen3_5 {
    /// Takes a checkpoint's tensors and lays out its memory.
    ///
    /// # Errors
    /// A tensor is missing, is not what the config says, or changes what the model computes and is not known here.
    pub fn load(checkpoint: &mut Checkpoint, precision: Precision) -> Result<Self, CheckpointError> {
        let config = checkpoint.config().clone();
        let weights = Weights::load(&config, checkpoint)?;
        checkpoint.check_unused()?;
        let memory = MemoryLayout::new(&config, precision);
        Ok(Self { config, weights, memory })
    }

    /// The plan of a key.
    pub fn record(&self, key: PlanKey) -> Plan {
        let mut r = Recorder::new(key);
        match key.program {
            Program::Forward => self.forward(&mut r),
            Program::Sample => {
                r.scope("sample");
                r.sample(self.config.vocab_size);
                return r.finish(&[]);
            }
        }
        let layers = self.weights.layers.len();
        let attention = self.weights.layers.iter().filter(|l| matches!(l.mixer, Mixer::Attention(_))).count();
        let experts = self.weights.layers.iter().filter_map(|l| l.mlp.sparse());
        let (sparse, alike) = (experts.clone().count(), experts.filter(|m| m.gate_up_alike(key.precision)).count());
        let heads = usize::from(key.logits != Logits::None);
        r.finish(&[
            ("fuse-expert-in", alike),
            ("fuse-expert-out", sparse),
            ("fuse-qk", attention),
            ("fuse-gdn-norm", layers - attention),
            ("fuse-residual", 2 * layers - sparse),
            ("fuse-norm-in", 2 * layers + heads),
            ("fuse-gdn-in", layers - attention),
            ("fuse-experts", alike),
            ("split-attention", attention),
            ("fixed-blocks", attention),
        ])
    }

    fn eps(&self) -> f32 {
        self.config.rms_norm_eps as f32
    }

    fn forward(&self, r: &mut Recorder) {
        let w = &self.weights;
        r.scope("embed_tokens");
        let mut h = r.embed(&w.embed_tokens);
        r.tap("hidden.00", h);
        for (i, (layer, memory)) in w.layers.iter().zip(&self.memory.layers).enumerate() {
            r.scope(format!("layers.{i}"));
            h = self.layer(r, layer, memory, h);
            r.tap(format!("hidden.{:02}", i + 1), h);
        }
        if r.key().logits == Logits::None {
            return;
        }
        r.scope("lm_head");
        let h = r.gather_outputs(h);
        let h = r.rms_norm(h, w.norm, self.eps());
        r.tap("hidden.norm", h);
        r.logits(h, Bulk(&w.lm_head));
    }

    fn layer(&self, r: &mut Recorder, layer: &Layer, memory: &LayerMemory, h: Tensor) -> Tensor {
        let x = r.rms_norm(h, layer.input_layernorm, self.eps());
        let mixed = match (&layer.mixer, memory) {
            (Mixer::GatedDeltaNet(m), LayerMemory::Recurrent { conv, delta }) => {
                self.gated_delta_net(r, m, (*conv, *delta), x)
            }
            (Mixer::Attention(m), LayerMemory::Cache(kv)) => {
                let (q, k, v) = (Bulk(&m.q_proj), Bulk(&m.k_proj), Bulk(&m.v_proj));
                let (q_gate, k, v) = (r.linear(x, q), r.linear(x, k), r.linear(x, v));
                self.attention(r, m, kv, (q_gate, k, v))
            }
            (Mixer::GatedDeltaNet(_), LayerMemory::Cache(_)) | (Mixer::Attention(_), LayerMemory::Recurrent { .. }) => {
                unreachable!("weights and memory are laid out from the same layer_types")
            }
        };
        let h = r.add(h, mixed);
        let x = r.rms_norm(h, layer.post_attention_layernorm, self.eps());
        match &layer.mlp {
            Mlp::Dense(m) => self.dense_mlp(r, m, h, x),
            Mlp::Sparse(m) => self.sparse_moe(r, m, h, x),
        }
    }

    /// `linear_attn`.
    fn gated_delta_net(
        &self,
        r: &mut Recorder,
        m: &GatedDeltaNet,
        (conv_state, delta_state): (Tensor, Tensor),
        x: Tensor,
    ) -> Tensor {
        let c = &self.config;
        let [qkv, z, a, b] = self.in_proj(r, &m.in_proj, x);
        let qkv = r.conv1d_silu(qkv, m.conv1d, conv_state);
        let gates = r.gdn_gates(a, b, m.a_log, m.dt_bias);
        let qk = r.l2_norm(qkv, c.linear_num_key_heads, c.linear_key_head_dim);
        let y = r.gated_delta(qk, qkv, gates, delta_state);
        let y = r.gated_rms_norm(y, z, m.norm, self.eps());
        r.linear(y, Bulk(&m.out_proj))
    }

    /// `[qkv, z, a, b]`.
    fn in_proj(&self, r: &mut Recorder, m: &InProj, x: Tensor) -> [Tensor; 4] {
        match m {
            InProj::Apart { qkv, z, a, b } => {
                let (qkv, z) = (r.linear(x, Bulk(qkv)), r.linear(x, Bulk(z)));
                [qkv, z, r.linear(x, Sensitive(a)), r.linear(x, Sensitive(b))]
            }
            InProj::Fused { qkvz, ba } => {
                let c = &self.config;
                let (heads, k_dim) = (c.linear_num_key_heads, c.linear_key_head_dim);
                let (v_heads, v_dim) = (c.linear_num_value_heads / heads, c.linear_value_dim() / heads);
                let (qkvz, ba) = (r.linear(x, Bulk(qkvz)), r.linear(x, Sensitive(ba)));
                let qkv = r.split_heads(qkvz, heads, 0, [k_dim, k_dim, v_dim]);
                let z = r.split_heads(qkvz, heads, 2 * k_dim + v_dim, [v_dim, 0, 0]);
                let a = r.split_heads(ba, heads, v_heads, [v_heads, 0, 0]);
                [qkv, z, a, r.split_heads(ba, heads, 0, [v_heads, 0, 0])]
            }
        }
    }

    /// `self_attn`, from its three projections.
    fn attention(
        &self,
        r: &mut Recorder,
        m: &Attention,
        kv: &lily_kernels::ops::kv_write::KvLayer,
        (q_gate, k, v): (Tensor, Tensor, Tensor),
    ) -> Tensor {
        let c = &self.config;
        let (heads, head_dim, eps) = (c.num_attention_heads, c.head_dim, self.eps());
        let q = r.head_norm(q_gate, m.q_norm, heads, 2 * head_dim, eps);
        let k = r.head_norm(k, m.k_norm, c.num_key_value_heads, head_dim, eps);
        let q = r.rope(q, self.weights.inv_freq, head_dim);
        let k = r.rope(k, self.weights.inv_freq, head_dim);
        r.kv_write(k, v, *kv);
        let o = r.attention(q, *kv);
        let o = r.sigmoid_gate(o, q_gate, heads);
        r.linear(o, Bulk(&m.o_proj))
    }

    /// `mlp` without experts, with the residual `h`; `x` is the normed input.
    fn dense_mlp(&self, r: &mut Recorder, m: &DenseMlp, h: Tensor, x: Tensor) -> Tensor {
        let (gate, up) = (r.linear(x, Bulk(&m.gate_proj)), r.linear(x, Bulk(&m.up_proj)));
        let inner = r.swiglu(gate, up);
        let out = r.linear(inner, Bulk(&m.down_proj));
        r.add(h, out)
    }

    /// `mlp` of experts, with the residual `h`; `x` is the normed input.
    fn sparse_moe(&self, r: &mut Recorder, m: &SparseMoe, h: Tensor, x: Tensor) -> Tensor {
        let router = r.linear(x, Sensitive(&m.gate));
        let shared_gate = r.linear(x, Sensitive(&m.shared_expert_gate));
        let (experts, scores) = r.router_top_k(router, self.config.num_experts_per_tok);
        let groups = r.group_rows(experts, self.config.num_experts);
        let gate = r.expert_linear(x, Bulk(&m.experts_gate_proj), groups);
        let up = r.expert_linear(x, Bulk(&m.experts_up_proj), groups);
        let inner = r.swiglu(gate, up);

        let gate = r.linear(x, Bulk(&m.shared_gate_proj));
        let up = r.linear(x, Bulk(&m.shared_up_proj));
        let shared_inner = r.swiglu(gate, up);

        let routed = r.expert_linear(inner, Bulk(&m.experts_down_proj), groups);
        let shared = r.linear(shared_inner, Bulk(&m.shared_down_proj));
        let routed = r.combine_experts(routed, scores);
        let out = r.shared_expert_add(routed, shared, shared_gate);
        r.add(h, out)
    }
}
