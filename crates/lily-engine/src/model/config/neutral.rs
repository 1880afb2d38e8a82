//! Fields of `config.json` that change what a model computes, and of which Lily computes one value. Any other value is
//! refused by name: a model that is run without them answers, and wrongly. Other families have these fields; a model
//! that is derived from one of them may too.

use serde_json::Value;

use super::{Config, ConfigError, Fields};

/// The values that change nothing. Null and absence never do.
enum Neutral {
    /// Only null or absent.
    Absent,
    /// True or false.
    Is(bool),
    /// A number.
    Number(f64),
    /// 0 or 1: one group is none.
    AtMostOne,
    /// A word.
    Word(&'static str),
    /// Whatever suits the rest of the configuration.
    Fits(fn(&Value, Fields<'_>, &Config) -> bool),
}

use Neutral::{Absent, AtMostOne, Fits, Is, Number, Word};

const ALL_POSITIONS: &str = "attention over all positions";
const NO_BIAS: &str = "projections without bias";
const SCORES: &str = "attention scores divided by the root of `head_dim`, as they are";
const ROTATION: &str = "rotary embeddings of two halves in every attention layer";
const ROUTER: &str = "a softmax over all experts, of which the likeliest are chosen";
const UNSCALED: &str = "values as they are";

/// Field, neutral values, and what Lily runs.
const FIELDS: &[(&str, Neutral, &str)] = &[
    // Attention.
    ("attn_output_gate", Is(true), "gated attention only"),
    ("use_sliding_window", Is(false), ALL_POSITIONS),
    ("sliding_window", Fits(is_unused_window), ALL_POSITIONS),
    ("attention_chunk_size", Absent, ALL_POSITIONS),
    ("dual_chunk_attention_config", Absent, ALL_POSITIONS),
    ("index_topk", Absent, ALL_POSITIONS),
    ("attn_logit_softcapping", Number(0.0), SCORES),
    ("query_pre_attn_scalar", Fits(|value, _, config| is_near(value, config.head_dim as f64)), SCORES),
    ("attention_multiplier", Fits(|value, _, config| is_near(value, (config.head_dim as f64).powf(-0.5))), SCORES),
    ("use_qk_norm", Is(true), "normed queries and keys"),
    ("qk_layernorm", Is(true), "normed queries and keys"),
    ("rope_interleave", Is(false), ROTATION),
    ("rope_interleaved", Is(false), ROTATION),
    ("rope_traditional", Is(false), ROTATION),
    ("no_rope_layers", Fits(|value, _, _| value.as_array().is_some_and(|all| all.iter().all(|on| on == 1))), ROTATION),
    // Projections.
    ("attention_bias", Is(false), NO_BIAS),
    ("attention_out_bias", Is(false), NO_BIAS),
    ("qkv_bias", Is(false), NO_BIAS),
    ("use_qkv_bias", Is(false), NO_BIAS),
    ("use_bias", Is(false), NO_BIAS),
    ("add_bias_linear", Is(false), NO_BIAS),
    ("mlp_bias", Is(false), NO_BIAS),
    ("lm_head_bias", Is(false), NO_BIAS),
    ("conv_bias", Is(false), "convolutions without bias"),
    ("use_conv_bias", Is(false), "convolutions without bias"),
    // Gated DeltaNet.
    ("allow_neg_eigval", Is(false), "update gates from 0 to 1"),
    ("linear_allow_neg_eigval", Is(false), "update gates from 0 to 1"),
    // MLPs.
    ("hidden_act", Word("silu"), "`silu` only"),
    ("hidden_activation", Word("silu"), "`silu` only"),
    ("swiglu_limit", Absent, "activations without bounds"),
    // Experts.
    ("norm_topk_prob", Is(true), "renormalised router weights only"),
    ("scoring_func", Word("softmax"), ROUTER),
    ("score_func", Word("softmax"), ROUTER),
    ("score_function", Word("softmax"), ROUTER),
    ("topk_method", Word("greedy"), ROUTER),
    ("n_group", AtMostOne, ROUTER),
    ("topk_group", AtMostOne, ROUTER),
    ("num_expert_group", AtMostOne, ROUTER),
    ("use_expert_bias", Is(false), ROUTER),
    ("moe_router_enable_expert_bias", Is(false), ROUTER),
    ("router_bias", Is(false), ROUTER),
    ("router_logit_softcapping", Number(0.0), ROUTER),
    ("routed_scaling_factor", Number(1.0), UNSCALED),
    ("n_shared_experts", Number(1.0), "one shared expert"),
    ("num_shared_experts", Number(1.0), "one shared expert"),
    ("first_k_dense_replace", Number(0.0), "the dense layers of `mlp_only_layers` and `decoder_sparse_step`"),
    ("moe_layer_freq", Number(1.0), "the dense layers of `mlp_only_layers` and `decoder_sparse_step`"),
    // The whole.
    ("final_logit_softcapping", Number(0.0), UNSCALED),
    ("logit_scale", Number(1.0), UNSCALED),
    ("logits_scaling", Number(1.0), UNSCALED),
    ("embedding_multiplier", Number(1.0), UNSCALED),
    ("scale_emb", Number(1.0), UNSCALED),
    ("residual_multiplier", Number(1.0), UNSCALED),
    ("scale_depth", Absent, UNSCALED),
    ("use_parallel_residual", Is(false), "attention before the MLP, not beside it"),
    ("parallel_residual", Is(false), "attention before the MLP, not beside it"),
];

/// Refuses every field that asks for something else than Lily computes.
pub(super) fn check(text: Fields<'_>, config: &Config) -> Result<(), ConfigError> {
    for (name, neutral, supported) in FIELDS {
        let Some(value) = text.get(name) else { continue };
        let is_neutral = match neutral {
            Absent => false,
            Is(wanted) => text.flag(name)? == Some(*wanted),
            Number(wanted) => is_near(value, *wanted),
            AtMostOne => value.as_u64().is_some_and(|count| count <= 1),
            Word(wanted) => text.string(name)? == Some(wanted),
            Fits(fits) => fits(value, text, config),
        };
        if !is_neutral {
            let found = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            return Err(text.unsupported(name, found, supported));
        }
    }
    Ok(())
}

fn is_near(value: &Value, wanted: f64) -> bool {
    value.as_f64().is_some_and(|number| (number - wanted).abs() <= 1e-6 * wanted.abs())
}

/// The window is switched off, or as long as the context.
fn is_unused_window(window: &Value, text: Fields<'_>, config: &Config) -> bool {
    text.get("use_sliding_window").and_then(Value::as_bool) == Some(false)
        || window.as_u64().is_some_and(|window| window >= config.max_position_embeddings as u64)
}
