//! `config.json` and `generation_config.json`: what is read, and what is refused with which sentence.

use std::fs;

use lily_engine::checkpoint::{AffineParams, Quantization, Stated};
use lily_engine::model::config::{Config, GenerationConfig, LayerType, MlpType};
use serde_json::{Value, json};

use crate::small::Small;
use crate::support::root;

fn parse(model: &Small) -> Result<Config, String> {
    Config::parse(&model.config.to_string()).map_err(|error| error.to_string())
}

#[test]
fn the_35b_config() {
    let folder = root().join("golden/checkpoint");
    let read = |name: &str| Config::parse(&fs::read_to_string(folder.join(name)).unwrap()).unwrap();
    let config = read("qwen3_6_35b_a3b_4bit.config.json");
    let full: Vec<usize> = (0..40).filter(|layer| config.layer_types[*layer] == LayerType::FullAttention).collect();
    assert_eq!(full, [3, 7, 11, 15, 19, 23, 27, 31, 35, 39]);
    assert_eq!((config.hidden_size, config.num_hidden_layers, config.vocab_size), (2048, 40, 248_320));
    assert_eq!((config.num_attention_heads, config.num_key_value_heads, config.head_dim), (16, 2, 256));
    assert_eq!((config.rotary_dims(), config.rope_theta, config.rms_norm_eps), (64, 1e7, 1e-6));
    assert_eq!((config.linear_key_dim(), config.linear_value_dim(), config.linear_conv_dim()), (2048, 4096, 8192));
    assert_eq!((config.num_experts, config.num_experts_per_tok), (256, 8));
    assert_eq!((config.moe_intermediate_size, config.shared_expert_intermediate_size), (512, 512));
    assert_eq!((config.max_position_embeddings, config.tie_word_embeddings), (262_144, false));
    assert_eq!(config.eos_token_ids, [248_044, 248_046]);

    let original = Config { eos_token_ids: config.eos_token_ids.clone(), ..read("qwen3_6_35b_a3b.config.json") };
    assert_eq!(original, config);
}

#[test]
fn variants_of_the_same_config() {
    let model = Small::new();
    let expected = parse(&model).unwrap();
    assert_eq!(expected.layer_types, [LayerType::LinearAttention, LayerType::FullAttention]);
    assert_eq!(expected.eos_token_ids, [2, 3]);

    let mut listed = model.clone();
    listed.text("full_attention_interval").take();
    *listed.text("layer_types") = json!(["linear_attention", "full_attention"]);
    assert_eq!(parse(&listed).unwrap(), expected);

    let mut flat = model.config["text_config"].clone();
    flat["eos_token_id"] = json!([3, 2]);
    let flat = Config::parse(&flat.to_string()).unwrap();
    assert_eq!(flat, Config { model_type: "qwen3_5_moe_text".into(), ..expected.clone() });

    for rope in [
        json!({"rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25}}),
        json!({"rope_scaling": {"type": "default"}, "rope_theta": 1e7, "partial_rotary_factor": 0.25}),
        json!({"rope_scaling": null, "rope_theta": 1e7}),
        json!({"rope_parameters": {"type": "mrope", "mrope_section": [2, 1, 1]}, "rope_theta": 1e7}),
    ] {
        let mut moved = model.clone();
        moved.text("rope_parameters").take();
        for (field, value) in rope.as_object().unwrap() {
            *moved.text(field) = value.clone();
        }
        assert_eq!(parse(&moved).unwrap(), expected, "{rope}");
    }

    let mut tied = model;
    tied.text("tie_word_embeddings").take();
    tied.config["tie_word_embeddings"] = json!(true);
    assert!(parse(&tied).unwrap().tie_word_embeddings);
}

#[test]
fn mlps_by_configuration() {
    use MlpType::{Dense, Sparse};
    let mut model = Small::new();
    assert_eq!(parse(&model).unwrap().mlp_types, [Sparse, Sparse]);
    *model.text("intermediate_size") = json!(192);
    *model.text("mlp_only_layers") = json!([1]);
    assert_eq!(parse(&model).unwrap().mlp_types, [Sparse, Dense]);
    *model.text("mlp_only_layers") = json!([]);
    *model.text("decoder_sparse_step") = json!(2);
    assert_eq!(parse(&model).unwrap().mlp_types, [Dense, Sparse]);
    *model.text("num_experts") = json!(0);
    let dense = parse(&model).unwrap();
    assert_eq!((dense.mlp_types, dense.intermediate_size, dense.num_experts), (vec![Dense, Dense], 192, 0));
}

/// `text_config.{field} = value` gives `config.json has {sentence}`.
fn check(cases: &[(&str, Value, &str)]) {
    for (field, value, sentence) in cases {
        let mut model = Small::new();
        if *field == "num_attention_heads" {
            *model.text("num_key_value_heads") = json!(2);
        }
        *model.text(field) = value.clone();
        assert_eq!(parse(&model).unwrap_err(), format!("config.json has {sentence}"));
    }
}

#[test]
fn refused_sizes() {
    check(&[
        ("hidden_size", Value::Null, "no `text_config.hidden_size`"),
        ("hidden_size", json!(0), "`text_config.hidden_size` = 0; it must be a whole number from 1 to 262144"),
        ("hidden_size", json!(-1), "`text_config.hidden_size` = -1; it must be a whole number from 1 to 262144"),
        ("hidden_size", json!(64.5), "`text_config.hidden_size` = 64.5; it must be a whole number from 1 to 262144"),
        (
            "vocab_size",
            json!(u64::MAX),
            "`text_config.vocab_size` = 18446744073709551615; it must be a whole number from 1 to 16777216",
        ),
        ("vocab_size", json!(3), "`text_config.eos_token_id` = 3; it must be below `vocab_size` = 3"),
        (
            "eos_token_id",
            json!([2, "3"]),
            "`text_config.eos_token_id` = [2,\"3\"]; it must be a token id or a list of them",
        ),
        (
            "num_attention_heads",
            json!(3),
            "`text_config.num_attention_heads` = 3; it must be a multiple of `num_key_value_heads` = 2",
        ),
        (
            "linear_num_key_heads",
            json!(4),
            "`text_config.linear_num_value_heads` = 2; it must be a multiple of `linear_num_key_heads` = 4",
        ),
        (
            "num_experts_per_tok",
            json!(4),
            "`text_config.num_experts_per_tok` = 4; it must be at most `num_experts` = 3",
        ),
        ("linear_conv_kernel_dim", json!(1), "`text_config.linear_conv_kernel_dim` = 1; it must be at least 2"),
        (
            "layer_types",
            json!(["full_attention"]),
            "`text_config.layer_types` = 1 entries; it must be as long as `num_hidden_layers` = 2",
        ),
        (
            "layer_types",
            json!(["full_attention", "sliding_attention"]),
            "`text_config.layer_types` = \"sliding_attention\", which is not supported; Lily runs `linear_attention` and \
             `full_attention`",
        ),
    ]);
}

#[test]
fn refused_variants() {
    check(&[
        (
            "rope_parameters",
            json!({"rope_theta": 1e7, "partial_rotary_factor": 0.3}),
            "`text_config.partial_rotary_factor` = 0.3; it must be such that `head_dim` = 32 times it is an even number \
             from 2 to `head_dim`",
        ),
        (
            "rope_parameters",
            json!({"rope_theta": 1e7, "partial_rotary_factor": 1.25}),
            "`text_config.partial_rotary_factor` = 1.25; it must be such that `head_dim` = 32 times it is an even number \
             from 2 to `head_dim`",
        ),
        (
            "rope_parameters",
            json!({"rope_theta": 1e7, "rope_type": "yarn", "factor": 4.0}),
            "`rope_parameters.rope_type` = yarn, which is not supported; Lily runs `default` only",
        ),
        ("rope_parameters", json!({}), "no `text_config.rope_parameters.rope_theta`"),
        ("rope_parameters", json!(3), "`text_config.rope_parameters` = 3; it must be an object"),
        ("rms_norm_eps", json!(0.0), "`text_config.rms_norm_eps` = 0.0; it must be a number above 0"),
        ("tie_word_embeddings", json!("no"), "`text_config.tie_word_embeddings` = \"no\"; it must be true or false"),
        ("num_experts", Value::Null, "no `text_config.num_experts`"),
        ("num_experts", json!(0), "no `text_config.intermediate_size`"),
        ("mlp_only_layers", json!([0]), "no `text_config.intermediate_size`"),
        ("decoder_sparse_step", json!(2), "no `text_config.intermediate_size`"),
        ("mlp_only_layers", json!([2]), "`text_config.mlp_only_layers` = [2]; it must be a list of layer numbers"),
        ("mlp_only_layers", json!(1), "`text_config.mlp_only_layers` = 1; it must be a list of layer numbers"),
        (
            "model_type",
            json!("qwen3"),
            "`text_config.model_type` = qwen3, which is not supported; Lily runs qwen3_5_moe, qwen3_5_moe_text, qwen3_5, \
             qwen3_5_text, qwen3_next",
        ),
    ]);
}

// tidy: allow(function-length): one table of fields
/// Each field with a value that changes what the model computes, and one that does not.
#[test]
fn fields_that_change_the_mathematics_are_refused_by_name() {
    let rows: [(&str, Value, Value, &str); 52] = [
        ("use_sliding_window", json!(true), json!(false), "attention over all positions"),
        ("sliding_window", json!(255), json!(256), "attention over all positions"),
        ("attention_chunk_size", json!(8192), json!(null), "attention over all positions"),
        ("dual_chunk_attention_config", json!({"chunk_size": 9}), json!(null), "attention over all positions"),
        ("index_topk", json!(2048), json!(null), "attention over all positions"),
        ("attn_logit_softcapping", json!(50.0), json!(null), "attention scores divided by the root of"),
        ("query_pre_attn_scalar", json!(64), json!(32), "attention scores divided by the root of"),
        ("attention_multiplier", json!(0.125), json!(0.176_776_7), "attention scores divided by the root of"),
        ("use_qk_norm", json!(false), json!(true), "normed queries and keys"),
        ("qk_layernorm", json!(false), json!(true), "normed queries and keys"),
        ("rope_interleave", json!(true), json!(false), "rotary embeddings of two halves"),
        ("rope_interleaved", json!(true), json!(false), "rotary embeddings of two halves"),
        ("rope_traditional", json!(true), json!(false), "rotary embeddings of two halves"),
        ("no_rope_layers", json!([1, 0]), json!([1, 1]), "rotary embeddings of two halves"),
        ("attention_out_bias", json!(true), json!(false), "projections without bias"),
        ("qkv_bias", json!(true), json!(false), "projections without bias"),
        ("use_qkv_bias", json!(true), json!(false), "projections without bias"),
        ("use_bias", json!(true), json!(false), "projections without bias"),
        ("add_bias_linear", json!(true), json!(false), "projections without bias"),
        ("mlp_bias", json!(true), json!(false), "projections without bias"),
        ("lm_head_bias", json!(true), json!(false), "projections without bias"),
        ("conv_bias", json!(true), json!(false), "convolutions without bias"),
        ("use_conv_bias", json!(true), json!(false), "convolutions without bias"),
        ("allow_neg_eigval", json!(true), json!(false), "update gates from 0 to 1"),
        ("linear_allow_neg_eigval", json!(true), json!(false), "update gates from 0 to 1"),
        ("hidden_activation", json!("gelu_pytorch_tanh"), json!("silu"), "`silu` only"),
        ("swiglu_limit", json!(7.0), json!(null), "activations without bounds"),
        ("scoring_func", json!("sigmoid"), json!("softmax"), "a softmax over all experts"),
        ("score_func", json!("sigmoid"), json!("softmax"), "a softmax over all experts"),
        ("score_function", json!("sigmoid"), json!("softmax"), "a softmax over all experts"),
        ("topk_method", json!("noaux_tc"), json!("greedy"), "a softmax over all experts"),
        ("n_group", json!(8), json!(1), "a softmax over all experts"),
        ("topk_group", json!(4), json!(1), "a softmax over all experts"),
        ("num_expert_group", json!(2), json!(0), "a softmax over all experts"),
        ("use_expert_bias", json!(true), json!(false), "a softmax over all experts"),
        ("moe_router_enable_expert_bias", json!(true), json!(false), "a softmax over all experts"),
        ("router_bias", json!(true), json!(false), "a softmax over all experts"),
        ("router_logit_softcapping", json!(20.0), json!(0.0), "a softmax over all experts"),
        ("routed_scaling_factor", json!(2.5), json!(1.0), "values as they are"),
        ("n_shared_experts", json!(2), json!(1), "one shared expert"),
        ("num_shared_experts", json!(0), json!(1), "one shared expert"),
        ("first_k_dense_replace", json!(3), json!(0), "the dense layers of"),
        ("moe_layer_freq", json!(2), json!(1), "the dense layers of"),
        ("final_logit_softcapping", json!(30.0), json!(0), "values as they are"),
        ("logits_scaling", json!(8), json!(1), "values as they are"),
        ("embedding_multiplier", json!(12.0), json!(1.0), "values as they are"),
        ("residual_multiplier", json!("0.22"), json!(1), "values as they are"),
        ("logit_scale", json!(0.0625), json!(1.0), "values as they are"),
        ("scale_emb", json!(12), json!(1), "values as they are"),
        ("scale_depth", json!(1.4), json!(null), "values as they are"),
        ("use_parallel_residual", json!(true), json!(false), "attention before the MLP"),
        ("parallel_residual", json!(true), json!(false), "attention before the MLP"),
    ];
    for (field, value, neutral, runs) in rows {
        let mut model = Small::new();
        let expected = parse(&model).unwrap();
        let found = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        *model.text(field) = value;
        let refused = parse(&model).unwrap_err();
        let sentence =
            format!("config.json has `text_config.{field}` = {found}, which is not supported; Lily runs {runs}");
        assert!(refused.starts_with(&sentence), "{refused}");
        for harmless in [neutral, Value::Null] {
            *model.text(field) = harmless;
            assert_eq!(parse(&model).unwrap(), expected, "{field}");
        }
    }
    let mut unused = Small::new();
    *unused.text("sliding_window") = json!(64);
    *unused.text("use_sliding_window") = json!(false);
    parse(&unused).unwrap();
}

#[test]
fn rope_scalings_are_refused_wherever_they_stand() {
    check(&[
        (
            "rope_scaling",
            json!({"type": "yarn", "factor": 4.0}),
            "`rope_scaling.type` = yarn, which is not supported; Lily runs `default` only",
        ),
        (
            "rope_parameters",
            json!({"rope_theta": 1e7, "rope_type": "default", "type": "yarn"}),
            "`rope_parameters.type` = yarn, which is not supported; Lily runs `default` only",
        ),
        (
            "rope_parameters",
            json!({"rope_theta": 1e7, "factor": 4.0}),
            "`rope_parameters.factor` = 4, which is not supported; Lily runs positions as they are",
        ),
        (
            "num_experts",
            json!("many"),
            "`text_config.num_experts` = \"many\"; it must be a whole number from 1 to 4096",
        ),
        (
            "attn_output_gate",
            json!(false),
            "`text_config.attn_output_gate` = false, which is not supported; Lily runs gated attention only",
        ),
        ("hidden_act", json!("gelu"), "`text_config.hidden_act` = gelu, which is not supported; Lily runs `silu` only"),
        (
            "attention_bias",
            json!(true),
            "`text_config.attention_bias` = true, which is not supported; Lily runs projections without bias",
        ),
        (
            "norm_topk_prob",
            json!(false),
            "`text_config.norm_topk_prob` = false, which is not supported; Lily runs renormalised router weights only",
        ),
    ]);
    let mut model = Small::new();
    model.config["rope_scaling"] = json!({"rope_type": "yarn"});
    let refused = parse(&model).unwrap_err();
    assert!(refused.starts_with("config.json has `rope_scaling.rope_type` = yarn"), "{refused}");
}

#[test]
fn refusals_of_whole_files() {
    let sentence = |json: &str| Config::parse(json).unwrap_err().to_string();
    assert_eq!(sentence("{"), "config.json is not valid JSON: EOF while parsing an object at line 1 column 1");
    assert_eq!(sentence("[]"), "config.json has `(top level)` = []; it must be an object");
    assert_eq!(sentence("{}"), "config.json has no `model_type`");
    assert_eq!(
        sentence(r#"{"model_type": "llama"}"#),
        "config.json has `model_type` = llama, which is not supported; Lily runs qwen3_5_moe, qwen3_5_moe_text, qwen3_5, \
         qwen3_5_text, qwen3_next"
    );
}

#[test]
fn generation_configs() {
    assert_eq!(GenerationConfig::parse("{}").unwrap(), GenerationConfig::default());
    let read = GenerationConfig::parse(
        r#"{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": null,
            "repetition_penalty": 1.05, "eos_token_id": [9, 7, 9]}"#,
    );
    let expected = GenerationConfig {
        do_sample: true,
        temperature: 0.6,
        top_k: 20,
        top_p: 0.95,
        min_p: 0.0,
        repetition_penalty: 1.05,
        eos_token_ids: vec![7, 9],
    };
    assert_eq!(read.unwrap(), expected);
    assert_eq!(GenerationConfig::parse(r#"{"top_k": -1, "eos_token_id": 5}"#).unwrap().eos_token_ids, [5]);

    for (json, sentence) in [
        (r#"{"temperature": -1}"#, "`temperature` = -1; it must be a number from 0"),
        (r#"{"top_p": 0}"#, "`top_p` = 0; it must be a number above 0 and up to 1"),
        (r#"{"min_p": 1.5}"#, "`min_p` = 1.5; it must be a number from 0 to 1"),
        (r#"{"repetition_penalty": 0}"#, "`repetition_penalty` = 0; it must be a number above 0"),
        (r#"{"repetition_penalty": 1e-300}"#, "`repetition_penalty` = 1e-300; it must be a number above 0"),
        (r#"{"top_k": 1.5}"#, "`top_k` = 1.5; it must be a whole number from 0"),
        (r#"{"do_sample": 1}"#, "`do_sample` = 1; it must be true or false"),
        (r#"{"eos_token_id": -1}"#, "`eos_token_id` = -1; it must be a token id or a list of them"),
    ] {
        let error = GenerationConfig::parse(json).unwrap_err().to_string();
        assert_eq!(error, format!("generation_config.json has {sentence}"));
    }
}

#[test]
fn quantization_blocks() {
    let four = AffineParams { bits: 4, group: 64 };
    let block = json!({"group_size": 64, "bits": 4, "a": {"bits": 8}, "b": {"group_size": 32, "bits": 6}, "c": false,
                       "d": true, "vision_tower.x": {"mode": "mxfp4"}});
    for name in ["quantization", "quantization_config"] {
        let quantization = Quantization::parse(&json!({name: block}).to_string()).unwrap();
        assert_eq!(quantization.lookup("a"), Stated::Named(AffineParams { bits: 8, group: 64 }));
        assert_eq!(quantization.lookup("b"), Stated::Named(AffineParams { bits: 6, group: 32 }));
        assert_eq!(quantization.lookup("c"), Stated::Dense);
        assert_eq!(quantization.lookup("d"), Stated::Named(four));
        assert_eq!(quantization.lookup("e"), Stated::Default(four));
    }
    assert_eq!(Quantization::parse("{}").unwrap().lookup("a"), Stated::Nothing);

    for (block, sentence) in [
        (
            json!({"quant_method": "fp8"}),
            "`quantization.quant_method` = fp8, which is not supported; Lily runs MLX affine quantization",
        ),
        (
            json!({"bits": 4, "group_size": 32, "mode": "mxfp4"}),
            "`quantization.mode` = mxfp4, which is not supported; Lily runs `affine` only",
        ),
        (
            json!({"bits": 4, "group_size": 64, "a.b": {"bits": 4, "mode": "nvfp4"}}),
            "`a.b.mode` = nvfp4, which is not supported; Lily runs `affine` only",
        ),
        (json!({"bits": 9, "group_size": 64}), "`quantization.bits` = 9; it must be a whole number from 1 to 8"),
        (json!({"bits": 4}), "no `quantization.group_size`"),
    ] {
        let error = Quantization::parse(&json!({"quantization": block}).to_string()).unwrap_err();
        assert_eq!(error.to_string(), format!("config.json has {sentence}"));
    }
}
