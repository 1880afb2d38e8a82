//! `config.json` and `generation_config.json`, read once and checked, so that the code behind them can multiply,
//! divide and slice without looking back. Field names are Hugging Face's. Reads text only; opens no file.

use serde_json::{Map, Value};

mod neutral; // fields of which Lily computes one value

const _: () = assert!(usize::BITS == 64, "Lily counts bytes in 64 bits");

// Far above any model, and low enough that all weights together, and the KV cache at the longest context, stay below
// 2^63 bytes: no product of sizes overflows.
const MAX_WIDTH: usize = 1 << 18;
const MAX_HEADS: usize = 1 << 10;
const MAX_HEAD_DIM: usize = 1 << 10;
const MAX_LAYERS: usize = 1 << 10;
const MAX_EXPERTS: usize = 1 << 12;
const MAX_VOCABULARY: usize = 1 << 24;
const MAX_POSITIONS: usize = 1 << 26;
const MAX_CONV_TAPS: usize = 64;

/// `model_type` of the models that Lily runs, whole (`text_config` inside) and text only.
const MODEL_TYPES: [&str; 5] = ["qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5", "qwen3_5_text", "qwen3_next"];

/// Why a JSON file of the model was refused. `Display` is one whole sentence, so there is no `source()`.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Not JSON.
    #[error("{file} is not valid JSON: {reason}")]
    Json {
        /// `config.json`, ...
        file: &'static str,
        /// What the parser said.
        reason: serde_json::Error,
    },
    /// A required field is absent.
    #[error("{file} has no `{field}`")]
    Missing {
        /// `config.json`, ...
        file: &'static str,
        /// The field, with the objects around it.
        field: String,
    },
    /// A field makes no sense.
    #[error("{file} has `{field}` = {found}; it must be {expected}")]
    Invalid {
        /// `config.json`, ...
        file: &'static str,
        /// The field, with the objects around it.
        field: String,
        /// Its value.
        found: String,
        /// What would be accepted.
        expected: String,
    },
    /// A field asks for something that Lily does not do.
    #[error("{file} has `{field}` = {found}, which is not supported; Lily runs {supported}")]
    Unsupported {
        /// `config.json`, ...
        file: &'static str,
        /// The field, with the objects around it.
        field: String,
        /// Its value.
        found: String,
        /// What is supported.
        supported: String,
    },
}

/// How a layer mixes positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LayerType {
    /// `linear_attention`: Gated DeltaNet with a recurrent state.
    LinearAttention,
    /// `full_attention`: gated softmax attention with a KV cache.
    FullAttention,
}

/// How a layer mixes channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MlpType {
    /// One gated MLP.
    Dense,
    /// Routed experts and a shared one.
    Sparse,
}

/// The text model, as `config.json` describes it. All sizes are at least 1 and bounded so that no product of them
/// overflows; the divisibilities that the forward pass needs hold.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Top-level `model_type`.
    pub model_type: String,
    /// D.
    pub hidden_size: usize,
    /// Decoder layers; the length of `layer_types`.
    pub num_hidden_layers: usize,
    /// Kind of each layer, first to last.
    pub layer_types: Vec<LayerType>,
    /// Query heads of a full-attention layer; a multiple of `num_key_value_heads`.
    pub num_attention_heads: usize,
    /// Key/value heads of a full-attention layer.
    pub num_key_value_heads: usize,
    /// Width of an attention head.
    pub head_dim: usize,
    /// `q_proj` yields a gate beside each query head. Always true for now.
    pub attn_output_gate: bool,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Part of `head_dim` that is rotated; see [`Config::rotary_dims`].
    pub partial_rotary_factor: f64,
    /// Added to the mean square in every RMSNorm.
    pub rms_norm_eps: f64,
    /// Hk of a linear-attention layer.
    pub linear_num_key_heads: usize,
    /// Hv of a linear-attention layer; a multiple of Hk.
    pub linear_num_value_heads: usize,
    /// Dk of a linear-attention layer.
    pub linear_key_head_dim: usize,
    /// Dv of a linear-attention layer.
    pub linear_value_head_dim: usize,
    /// Taps of the causal convolution, the current position included; at least 2.
    pub linear_conv_kernel_dim: usize,
    /// Kind of each layer's MLP, first to last: sparse where there are experts, but for `mlp_only_layers` and the layers
    /// that `decoder_sparse_step` skips.
    pub mlp_types: Vec<MlpType>,
    /// Inner width of a dense MLP; 0 without dense layers.
    pub intermediate_size: usize,
    /// E, routed experts of each sparse layer; 0, as the next three, without such layers.
    pub num_experts: usize,
    /// K, experts chosen for each token; at most `num_experts`.
    pub num_experts_per_tok: usize,
    /// Inner width of a routed expert.
    pub moe_intermediate_size: usize,
    /// Inner width of the shared expert.
    pub shared_expert_intermediate_size: usize,
    /// V, rows of the embedding and of the head, padding included.
    pub vocab_size: usize,
    /// The head is the embedding matrix.
    pub tie_word_embeddings: bool,
    /// Longest sequence, in positions.
    pub max_position_embeddings: usize,
    /// Activation of the experts. Always `silu` for now.
    pub hidden_act: String,
    /// Ids that end a turn, ascending: those of `config.json` and of its `text_config` together. Chat models often name
    /// the id that ends a turn only in `generation_config.json`.
    pub eos_token_ids: Vec<u32>,
}

impl Config {
    /// Reads the text of a `config.json`, with the text model nested in `text_config` or flat.
    ///
    /// # Errors
    /// Not JSON, a field missing, senseless or out of bounds, or a model that Lily does not run.
    pub fn parse(json: &str) -> Result<Self, ConfigError> {
        let root = parse_object("config.json", json)?;
        let top = Fields { file: "config.json", section: "", object: &root };
        let nested = top.object("text_config")?;
        let text = nested.unwrap_or(top);

        let model_type = top.model_type()?.ok_or_else(|| top.missing("model_type"))?;
        text.model_type()?;
        let mlp_types = text.mlp_types()?;
        let size_if = |kind: MlpType, name: &str, max: usize| match mlp_types.contains(&kind) {
            true => text.size(name, max),
            false => Ok(0),
        };
        let config = Self {
            model_type,
            hidden_size: text.size("hidden_size", MAX_WIDTH)?,
            num_hidden_layers: text.size("num_hidden_layers", MAX_LAYERS)?,
            layer_types: text.layer_types()?,
            num_attention_heads: text.size("num_attention_heads", MAX_HEADS)?,
            num_key_value_heads: text.size("num_key_value_heads", MAX_HEADS)?,
            head_dim: text.size("head_dim", MAX_HEAD_DIM)?,
            attn_output_gate: text.flag("attn_output_gate")?.unwrap_or(true),
            rope_theta: text.rope_number("rope_theta")?.ok_or_else(|| text.missing("rope_parameters.rope_theta"))?,
            // The default of both reference implementations.
            partial_rotary_factor: text.rope_number("partial_rotary_factor")?.unwrap_or(0.25),
            rms_norm_eps: text.number("rms_norm_eps")?.ok_or_else(|| text.missing("rms_norm_eps"))?,
            linear_num_key_heads: text.size("linear_num_key_heads", MAX_HEADS)?,
            linear_num_value_heads: text.size("linear_num_value_heads", MAX_HEADS)?,
            linear_key_head_dim: text.size("linear_key_head_dim", MAX_HEAD_DIM)?,
            linear_value_head_dim: text.size("linear_value_head_dim", MAX_HEAD_DIM)?,
            linear_conv_kernel_dim: text.size("linear_conv_kernel_dim", MAX_CONV_TAPS)?,
            intermediate_size: size_if(MlpType::Dense, "intermediate_size", MAX_WIDTH)?,
            num_experts: size_if(MlpType::Sparse, "num_experts", MAX_EXPERTS)?,
            num_experts_per_tok: size_if(MlpType::Sparse, "num_experts_per_tok", MAX_EXPERTS)?,
            moe_intermediate_size: size_if(MlpType::Sparse, "moe_intermediate_size", MAX_WIDTH)?,
            shared_expert_intermediate_size: size_if(MlpType::Sparse, "shared_expert_intermediate_size", MAX_WIDTH)?,
            mlp_types,
            vocab_size: text.size("vocab_size", MAX_VOCABULARY)?,
            tie_word_embeddings: match text.flag("tie_word_embeddings")? {
                Some(tied) => tied,
                None => top.flag("tie_word_embeddings")?.unwrap_or(false),
            },
            max_position_embeddings: text.size("max_position_embeddings", MAX_POSITIONS)?,
            hidden_act: text.string("hidden_act")?.unwrap_or("silu").to_owned(),
            eos_token_ids: union(top.token_ids("eos_token_id")?, text.token_ids("eos_token_id")?),
        };
        config.check_relations(text)?;
        neutral::check(text, &config)?;
        text.check_rope_type()?;
        top.check_rope_type()?;
        Ok(config)
    }

    /// Leading dimensions of each head that RoPE rotates; even, from 2 to `head_dim`.
    pub fn rotary_dims(&self) -> usize {
        (self.head_dim as f64 * self.partial_rotary_factor).round() as usize
    }

    /// Hk·Dk of a linear-attention layer.
    pub fn linear_key_dim(&self) -> usize {
        self.linear_num_key_heads * self.linear_key_head_dim
    }

    /// Hv·Dv of a linear-attention layer.
    pub fn linear_value_dim(&self) -> usize {
        self.linear_num_value_heads * self.linear_value_head_dim
    }

    /// Channels of the causal convolution: q, k and v.
    pub fn linear_conv_dim(&self) -> usize {
        2 * self.linear_key_dim() + self.linear_value_dim()
    }

    fn check_relations(&self, text: Fields<'_>) -> Result<(), ConfigError> {
        let multiple = |field: &str, value: usize, of: &str, divisor: usize| {
            if value.is_multiple_of(divisor) {
                return Ok(());
            }
            Err(text.invalid(field, value, &format!("a multiple of `{of}` = {divisor}")))
        };
        multiple("num_attention_heads", self.num_attention_heads, "num_key_value_heads", self.num_key_value_heads)?;
        multiple(
            "linear_num_value_heads",
            self.linear_num_value_heads,
            "linear_num_key_heads",
            self.linear_num_key_heads,
        )?;
        if self.num_experts_per_tok > self.num_experts {
            let expected = format!("at most `num_experts` = {}", self.num_experts);
            return Err(text.invalid("num_experts_per_tok", self.num_experts_per_tok, &expected));
        }
        if self.linear_conv_kernel_dim < 2 {
            return Err(text.invalid("linear_conv_kernel_dim", self.linear_conv_kernel_dim, "at least 2"));
        }
        let rotary = self.head_dim as f64 * self.partial_rotary_factor;
        let whole = (rotary - rotary.round()).abs() < 1e-6;
        if !whole || !self.rotary_dims().is_multiple_of(2) || !(2..=self.head_dim).contains(&self.rotary_dims()) {
            let expected =
                format!("such that `head_dim` = {} times it is an even number from 2 to `head_dim`", self.head_dim);
            return Err(text.invalid("partial_rotary_factor", self.partial_rotary_factor, &expected));
        }
        if let Some(id) = self.eos_token_ids.iter().find(|id| **id as usize >= self.vocab_size) {
            return Err(text.invalid("eos_token_id", id, &format!("below `vocab_size` = {}", self.vocab_size)));
        }
        Ok(())
    }
}

/// `generation_config.json`: how its makers sample from the model. [`Default`] is what an absent file means.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerationConfig {
    /// Sample; otherwise take the most likely token.
    pub do_sample: bool,
    /// At least 0; 0 is greedy.
    pub temperature: f32,
    /// 0 keeps all tokens.
    pub top_k: u32,
    /// In (0, 1].
    pub top_p: f32,
    /// In [0, 1].
    pub min_p: f32,
    /// Above 0; 1 penalizes nothing.
    pub repetition_penalty: f32,
    /// Ids that end a turn, ascending; add them to the config's.
    pub eos_token_ids: Vec<u32>,
}

impl Default for GenerationConfig {
    fn default() -> Self {
        Self {
            do_sample: false,
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            eos_token_ids: Vec::new(),
        }
    }
}

impl GenerationConfig {
    /// Reads the text of a `generation_config.json`; absent and null fields keep their defaults.
    ///
    /// # Errors
    /// Not JSON, or a field of the wrong type or out of range.
    pub fn parse(json: &str) -> Result<Self, ConfigError> {
        let root = parse_object("generation_config.json", json)?;
        let fields = Fields { file: "generation_config.json", section: "", object: &root };
        let default = Self::default();
        let within = |name: &str, default: f32, range: fn(f64) -> bool, expected: &str| match fields.get(name) {
            None => Ok(default),
            Some(value) => match value.as_f64() {
                Some(number) if number.is_finite() && range(number) => Ok(number as f32),
                _ => Err(fields.invalid(name, value, expected)),
            },
        };
        Ok(Self {
            do_sample: fields.flag("do_sample")?.unwrap_or(default.do_sample),
            temperature: within("temperature", default.temperature, |t| (0.0..=1e6).contains(&t), "a number from 0")?,
            top_k: match fields.get("top_k") {
                None => default.top_k,
                // Some exporters write the "no limit" of their own engine.
                Some(value) if value.as_i64() == Some(-1) => 0,
                Some(value) => value
                    .as_u64()
                    .and_then(|k| u32::try_from(k).ok())
                    .ok_or_else(|| fields.invalid("top_k", value, "a whole number from 0"))?,
            },
            top_p: within("top_p", default.top_p, |p| p > 0.0 && p <= 1.0, "a number above 0 and up to 1")?,
            min_p: within("min_p", default.min_p, |p| (0.0..=1.0).contains(&p), "a number from 0 to 1")?,
            repetition_penalty: within(
                "repetition_penalty",
                default.repetition_penalty,
                |p| p as f32 > 0.0 && p <= 1e6,
                "a number above 0",
            )?,
            eos_token_ids: union(fields.token_ids("eos_token_id")?, Vec::new()),
        })
    }
}

/// Both lists as one set, ascending.
pub(crate) fn union(mut left: Vec<u32>, right: Vec<u32>) -> Vec<u32> {
    left.extend(right);
    left.sort_unstable();
    left.dedup();
    left
}

/// The object that a JSON file must be.
pub(crate) fn parse_object(file: &'static str, json: &str) -> Result<Map<String, Value>, ConfigError> {
    match serde_json::from_str(json) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(other) => Err(ConfigError::Invalid {
            file,
            field: "(top level)".to_owned(),
            found: shown(&other),
            expected: "an object".to_owned(),
        }),
        Err(reason) => Err(ConfigError::Json { file, reason }),
    }
}

/// A JSON object whose fields are read by name; a field that is null counts as absent.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    pub(crate) file: &'static str,
    /// Names of the enclosing objects with a dot after each, or nothing.
    pub(crate) section: &'a str,
    pub(crate) object: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    pub(crate) fn get(&self, name: &str) -> Option<&'a Value> {
        self.object.get(name).filter(|value| !value.is_null())
    }

    /// A whole number from 1 to `max`; the field must be there.
    pub(crate) fn size(&self, name: &str, max: usize) -> Result<usize, ConfigError> {
        let value = self.get(name).ok_or_else(|| self.missing(name))?;
        self.checked_size(name, value, max)
    }

    fn checked_size(&self, name: &str, value: &Value, max: usize) -> Result<usize, ConfigError> {
        value
            .as_u64()
            .and_then(|size| usize::try_from(size).ok())
            .filter(|size| (1..=max).contains(size))
            .ok_or_else(|| self.invalid(name, value, &format!("a whole number from 1 to {max}")))
    }

    /// A finite number above 0.
    fn number(&self, name: &str) -> Result<Option<f64>, ConfigError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        match value.as_f64() {
            Some(number) if number.is_finite() && number > 0.0 => Ok(Some(number)),
            _ => Err(self.invalid(name, value, "a number above 0")),
        }
    }

    fn flag(&self, name: &str) -> Result<Option<bool>, ConfigError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        value.as_bool().map(Some).ok_or_else(|| self.invalid(name, value, "true or false"))
    }

    pub(crate) fn string(&self, name: &str) -> Result<Option<&'a str>, ConfigError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        value.as_str().map(Some).ok_or_else(|| self.invalid(name, value, "a string"))
    }

    /// An object inside this one. Sections are one level deep.
    pub(crate) fn object(&self, name: &'static str) -> Result<Option<Fields<'a>>, ConfigError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        match value.as_object() {
            Some(object) => Ok(Some(Fields { file: self.file, section: name, object })),
            None => Err(self.invalid(name, value, "an object")),
        }
    }

    /// One id or a list of ids.
    fn token_ids(&self, name: &str) -> Result<Vec<u32>, ConfigError> {
        let Some(value) = self.get(name) else {
            return Ok(Vec::new());
        };
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        match value {
            Value::Array(ids) => ids.iter().map(id).collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
                id(value).map(|id| vec![id])
            }
        }
        .ok_or_else(|| self.invalid(name, value, "a token id or a list of them"))
    }

    fn model_type(&self) -> Result<Option<String>, ConfigError> {
        match self.string("model_type")? {
            Some(other) if !MODEL_TYPES.contains(&other) => {
                Err(self.unsupported("model_type", other, &MODEL_TYPES.join(", ")))
            }
            known => Ok(known.map(str::to_owned)),
        }
    }

    /// `layer_types`, or one full-attention layer in every `full_attention_interval`.
    fn layer_types(&self) -> Result<Vec<LayerType>, ConfigError> {
        let layers = self.size("num_hidden_layers", MAX_LAYERS)?;
        let Some(value) = self.get("layer_types") else {
            let interval = match self.get("full_attention_interval") {
                Some(value) => self.checked_size("full_attention_interval", value, MAX_LAYERS)?,
                None => 4, // the default of both reference implementations
            };
            let kind = |layer: usize| match (layer + 1).is_multiple_of(interval) {
                true => LayerType::FullAttention,
                false => LayerType::LinearAttention,
            };
            return Ok((0..layers).map(kind).collect());
        };
        let named = value.as_array().ok_or_else(|| self.invalid("layer_types", value, "a list of names"))?;
        if named.len() != layers {
            let expected = format!("as long as `num_hidden_layers` = {layers}");
            return Err(self.invalid("layer_types", format!("{} entries", named.len()), &expected));
        }
        let kind = |entry: &Value| match entry.as_str() {
            Some("linear_attention") => Ok(LayerType::LinearAttention),
            Some("full_attention") => Ok(LayerType::FullAttention),
            _ => Err(self.unsupported("layer_types", entry, "`linear_attention` and `full_attention`")),
        };
        named.iter().map(kind).collect()
    }

    /// `num_experts` absent or 0 means a dense model.
    fn mlp_types(&self) -> Result<Vec<MlpType>, ConfigError> {
        let layers = self.size("num_hidden_layers", MAX_LAYERS)?;
        let experts = self.get("num_experts");
        if experts.is_none() && self.string("model_type")?.is_some_and(|name| name.contains("_moe")) {
            return Err(self.missing("num_experts"));
        }
        if experts.is_none_or(|experts| experts.as_u64() == Some(0)) {
            return Ok(vec![MlpType::Dense; layers]);
        }
        let step = match self.get("decoder_sparse_step") {
            Some(value) => self.checked_size("decoder_sparse_step", value, MAX_LAYERS)?,
            None => 1,
        };
        let sparse = |layer: usize| (layer + 1).is_multiple_of(step);
        let kind = |layer| if sparse(layer) { MlpType::Sparse } else { MlpType::Dense };
        let mut types: Vec<MlpType> = (0..layers).map(kind).collect();
        let Some(dense) = self.get("mlp_only_layers") else {
            return Ok(types);
        };
        let expected = "a list of layer numbers";
        for layer in dense.as_array().ok_or_else(|| self.invalid("mlp_only_layers", dense, expected))? {
            let index = layer.as_u64().and_then(|layer| usize::try_from(layer).ok());
            let named = index.and_then(|index| types.get_mut(index));
            *named.ok_or_else(|| self.invalid("mlp_only_layers", dense, expected))? = MlpType::Dense;
        }
        Ok(types)
    }

    /// The object that holds the rotary parameters, in the three places where exporters put it.
    fn rope(&self) -> Result<Option<Fields<'a>>, ConfigError> {
        match self.object("rope_parameters")? {
            Some(fields) => Ok(Some(fields)),
            None => self.object("rope_scaling"),
        }
    }

    fn rope_number(&self, name: &str) -> Result<Option<f64>, ConfigError> {
        if let Some(rope) = self.rope()?
            && let Some(number) = rope.number(name)?
        {
            return Ok(Some(number));
        }
        self.number(name)
    }

    /// Every place that may hold a rope scaling is looked at: libraries differ in which of them wins.
    fn check_rope_type(&self) -> Result<(), ConfigError> {
        for section in ["rope_parameters", "rope_scaling"] {
            let Some(rope) = self.object(section)? else { continue };
            for name in ["rope_type", "type"] {
                match rope.string(name)? {
                    // For text the three position streams of mRoPE are one.
                    None | Some("default" | "mrope") => {}
                    Some(other) => return Err(rope.unsupported(name, other, "`default` only")),
                }
            }
            if let Some(factor) = rope.number("factor")?
                && factor != 1.0
            {
                return Err(rope.unsupported("factor", factor, "positions as they are"));
            }
        }
        Ok(())
    }

    fn full_name(&self, name: &str) -> String {
        if self.section.is_empty() { name.to_owned() } else { format!("{}.{name}", self.section) }
    }

    pub(crate) fn missing(&self, name: &str) -> ConfigError {
        ConfigError::Missing { file: self.file, field: self.full_name(name) }
    }

    pub(crate) fn invalid(&self, name: &str, found: impl ToString, expected: &str) -> ConfigError {
        let (field, found) = (self.full_name(name), shorten(found.to_string()));
        ConfigError::Invalid { file: self.file, field, found, expected: expected.to_owned() }
    }

    pub(crate) fn unsupported(&self, name: &str, found: impl ToString, supported: &str) -> ConfigError {
        let (field, found) = (self.full_name(name), shorten(found.to_string()));
        ConfigError::Unsupported { file: self.file, field, found, supported: supported.to_owned() }
    }
}

fn shown(value: &Value) -> String {
    shorten(value.to_string())
}

/// Keeps a sentence a sentence when a value is a page.
fn shorten(mut text: String) -> String {
    const SHOWN: usize = 60;
    if let Some((end, _)) = text.char_indices().nth(SHOWN) {
        text.truncate(end);
        text.push('…');
    }
    text
}
