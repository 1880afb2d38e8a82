//! A two-layer model built here, so that every part of its files can be bent; and what opening its variants gives.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use half::{bf16, f16};
use lily_engine::checkpoint::{Checkpoint, CheckpointError, TensorSource, Vector, cached_model};
use lily_engine::engine::ModelSource;
use lily_engine::model::config::Config;
use lily_kernels::tensor::{DType, FileSlice, Format, Matrix, Stored};
use serde_json::{Value, json};

use crate::everything::{Everything, parts_of};

/// A tensor as a file holds it.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    pub dtype: &'static str,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

/// A model before it is written.
#[derive(Debug, Clone)]
pub struct Small {
    pub config: Value,
    pub tensors: BTreeMap<String, Tensor>,
}

const PREFIX: &str = "language_model.model.";

impl Small {
    /// Four-bit matrices, eight-bit gates, bf16 vectors, as MLX writes them.
    pub fn new() -> Self {
        let gates = ["mlp.gate", "mlp.shared_expert_gate"];
        let mut quantization = json!({"group_size": 64, "bits": 4, "mode": "affine"});
        for (layer, gate) in (0..2).flat_map(|layer| gates.map(|gate| (layer, gate))) {
            quantization[format!("{PREFIX}layers.{layer}.{gate}")] = json!({"bits": 8, "group_size": 64});
        }
        let config = json!({
            "model_type": "qwen3_5_moe",
            "eos_token_id": [3, 2],
            "text_config": {
                "model_type": "qwen3_5_moe_text",
                "hidden_size": 64, "num_hidden_layers": 2, "full_attention_interval": 2,
                "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "attn_output_gate": true,
                "linear_num_key_heads": 1, "linear_num_value_heads": 2,
                "linear_key_head_dim": 32, "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4,
                "num_experts": 3, "num_experts_per_tok": 2,
                "moe_intermediate_size": 64, "shared_expert_intermediate_size": 128,
                "vocab_size": 5, "tie_word_embeddings": false, "max_position_embeddings": 256,
                "rms_norm_eps": 1e-6, "hidden_act": "silu", "eos_token_id": 2,
                "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25},
            },
            "quantization": quantization,
        });
        let mut recorder = Recorder { tensors: BTreeMap::new(), next: 1 };
        Everything::of(&Config::parse(&config.to_string()).unwrap(), &mut recorder).unwrap();
        Self { config, tensors: recorder.tensors }
    }

    pub fn text(&mut self, field: &str) -> &mut Value {
        &mut self.config["text_config"][field]
    }

    /// A tensor below `language_model.model.`.
    pub fn tensor(&mut self, name: &str) -> &mut Tensor {
        self.tensors.get_mut(&format!("{PREFIX}{name}")).unwrap()
    }

    pub fn remove(&mut self, name: &str) -> Tensor {
        self.tensors.remove(&format!("{PREFIX}{name}")).unwrap()
    }

    pub fn insert(&mut self, name: &str, dtype: &'static str, shape: &[usize]) {
        let elements: usize = shape.iter().product();
        let size = if matches!(dtype, "BF16" | "F16") { 2 } else { 4 };
        let tensor = Tensor { dtype, shape: shape.to_vec(), bytes: vec![1; elements * size] };
        self.tensors.insert(format!("{PREFIX}{name}"), tensor);
    }

    /// Writes `config.json`, `tokenizer.json` and one `model.safetensors`.
    pub fn write(&self, folder: &Path) {
        self.write_config(folder);
        fs::write(folder.join("model.safetensors"), safetensors_file(self.tensors.iter(), 0)).unwrap();
    }

    pub fn write_config(&self, folder: &Path) {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("config.json"), self.config.to_string()).unwrap();
        fs::write(folder.join("tokenizer.json"), "{}").unwrap();
    }

    /// Writes the tensors into shards by the first letters of their names, and an index.
    pub fn write_sharded(&self, folder: &Path, shard_of: fn(&str) -> &'static str) {
        self.write_config(folder);
        let mut shards = BTreeMap::<_, Vec<_>>::new();
        let mut weight_map = BTreeMap::new();
        for (name, tensor) in &self.tensors {
            weight_map.insert(name, shard_of(name));
            shards.entry(shard_of(name)).or_default().push((name, tensor));
        }
        for (shard, tensors) in shards {
            fs::write(folder.join(shard), safetensors_file(tensors.into_iter(), 0)).unwrap();
        }
        let index = json!({"metadata": {"total_size": 0}, "weight_map": weight_map});
        fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();
    }
}

/// A file whose data section starts at `misalignment` modulo 8.
pub fn safetensors_file<'a>(tensors: impl Iterator<Item = (&'a String, &'a Tensor)>, misalignment: usize) -> Vec<u8> {
    let mut header = json!({"__metadata__": {"format": "mlx"}});
    let mut data = Vec::new();
    for (name, tensor) in tensors {
        let end = data.len() + tensor.bytes.len();
        header[name] = json!({"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [data.len(), end]});
        data.extend(&tensor.bytes);
    }
    let mut header = header.to_string();
    while header.len() % 8 != misalignment {
        header.push(' ');
    }
    file_of(&header, &data)
}

pub fn file_of(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// Invents the tensor behind each request.
struct Recorder {
    tensors: BTreeMap<String, Tensor>,
    next: u64,
}

impl Recorder {
    fn add(&mut self, name: String, dtype: &'static str, shape: Vec<usize>) {
        let size = if dtype == "U32" { 4 } else { 2 };
        let elements: usize = shape.iter().product();
        let bytes = (0..elements * size).map(|_| self.byte()).collect();
        self.tensors.insert(name, Tensor { dtype, shape, bytes });
    }

    fn byte(&mut self) -> u8 {
        self.next = self.next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.next >> 56) as u8 & 0x3f // as the upper byte of a bf16 no NaN
    }
}

impl TensorSource for Recorder {
    fn has(&self, path: &str) -> bool {
        !path.ends_with("in_proj_qkvz")
    }

    fn matrix(
        &mut self,
        path: &str,
        experts: Option<usize>,
        rows: usize,
        cols: usize,
    ) -> Result<Matrix, CheckpointError> {
        let module = match path {
            "lm_head" => "language_model.lm_head".to_owned(),
            path => format!("{PREFIX}{}", path.replace("mlp.experts", "mlp.switch_mlp")),
        };
        let bits = if path.ends_with("mlp.gate") || path.ends_with("shared_expert_gate") { 8 } else { 4 };
        let shape = |last: usize| experts.into_iter().chain([rows, last]).collect::<Vec<_>>();
        self.add(format!("{module}.weight"), "U32", shape(cols * bits / 32));
        self.add(format!("{module}.scales"), "BF16", shape(cols / 64));
        self.add(format!("{module}.biases"), "BF16", shape(cols / 64));
        let weight = FileSlice { file: 0, offset: 0, bytes: 0 };
        let format = Format::Dense(DType::F32);
        Ok(Matrix::stacked(experts.unwrap_or(1), rows, cols, format, Stored { weight, affine: None }))
    }

    fn vector(&mut self, path: &str, shape: &[usize]) -> Result<Vector, CheckpointError> {
        let mut stored = shape.to_vec();
        if path.ends_with("conv1d.weight") {
            stored.push(1);
        }
        self.add(format!("{PREFIX}{path}"), "BF16", stored);
        Ok(Vector { values: vec![0.0; shape.iter().product()], stored: DType::Bf16 })
    }
}

/// Opens a folder and takes every tensor.
pub fn open(folder: &Path) -> Result<(Checkpoint, Everything), CheckpointError> {
    let mut checkpoint = Checkpoint::open(&ModelSource::Folder(folder.to_owned()))?;
    let config = checkpoint.config().clone();
    let all = Everything::of(&config, &mut checkpoint)?;
    checkpoint.check_unused()?;
    Ok((checkpoint, all))
}

/// Every byte that the checkpoint gives out must be the one that was written.
fn check_bytes(model: &Small, checkpoint: &Checkpoint, all: &Everything) {
    for (path, matrix) in &all.matrices {
        let module = match path.as_str() {
            "lm_head" => "language_model.lm_head".to_owned(),
            path => format!("{PREFIX}{}", path.replace("mlp.experts", "mlp.switch_mlp")),
        };
        for (part, bytes) in parts_of(checkpoint, matrix) {
            assert_eq!(bytes, model.tensors[&format!("{module}.{part}")].bytes, "{path}.{part}");
        }
    }
    for (path, values) in &all.vectors {
        let bytes = &model.tensors[&format!("{PREFIX}{path}")].bytes;
        let expected: Vec<f32> = bytes.chunks(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect();
        assert_eq!(values, &expected, "{path}");
    }
    assert_eq!(checkpoint.unknown(), Vec::<&str>::new());
}

#[test]
fn data_may_start_at_any_byte() {
    let model = Small::new();
    let folder = tempfile::tempdir().unwrap();
    model.write_config(folder.path());
    for misalignment in 0..8 {
        let bytes = safetensors_file(model.tensors.iter(), misalignment);
        fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
        let (checkpoint, all) = open(folder.path()).unwrap();
        // The first tensor by name lies where the data begins.
        let (_, head) = all.matrices.iter().find(|(path, _)| path == "lm_head").unwrap();
        assert_eq!(head.stack[0].affine.unwrap().1.offset % 8, misalignment as u64);
        check_bytes(&model, &checkpoint, &all);
    }
}

#[test]
fn shards_are_one_model_and_the_vision_tower_is_not_opened() {
    let mut model = Small::new();
    let vision = Tensor { dtype: "BF16", shape: vec![2], bytes: vec![0; 4] };
    for name in ["vision_tower.blocks.0.weight", "model.visual.patch.weight", "mtp.fc.weight"] {
        model.tensors.insert(name.to_owned(), vision.clone());
    }
    let folder = tempfile::tempdir().unwrap();
    model.write_sharded(folder.path(), |name| {
        if !name.starts_with(PREFIX) && !name.starts_with("language_model.lm_head") {
            "vision.safetensors"
        } else if name.contains("switch_mlp") {
            "model-00002-of-00002.safetensors"
        } else {
            "model-00001-of-00002.safetensors"
        }
    });
    fs::remove_file(folder.path().join("vision.safetensors")).unwrap();
    let (checkpoint, all) = open(folder.path()).unwrap();
    assert_eq!(checkpoint.weight_files().len(), 2);
    check_bytes(&model, &checkpoint, &all);

    // In one file they are passed over.
    let folder = tempfile::tempdir().unwrap();
    model.write(folder.path());
    let (checkpoint, all) = open(folder.path()).unwrap();
    check_bytes(&model, &checkpoint, &all);
}

#[test]
fn tensors_that_nobody_asks_for_are_unknown() {
    let mut model = Small::new();
    model.insert("layers.0.surprise.weight", "F32", &[3]);
    let folder = tempfile::tempdir().unwrap();
    model.write(folder.path());
    let (checkpoint, _) = open(folder.path()).unwrap();
    assert_eq!(checkpoint.unknown(), ["language_model.model.layers.0.surprise.weight"]);

    let checkpoint = Checkpoint::open(&ModelSource::Folder(folder.path().to_owned())).unwrap();
    assert_eq!(checkpoint.unknown().len(), model.tensors.len());
}

#[test]
fn what_is_left_over_and_harmless_is_a_warning() {
    let mut model = Small::new();
    let names = ["layers.0.surprise.bias", "layers.1.self_attn.rotary_emb.inv_freq", "mtp.fc.weight", "audio.0.bias"];
    for name in names {
        model.insert(name, "F32", &[3]);
    }
    for name in ["mtp.layers.0.self_attn.q_proj.bias", "vision_tower.blocks.0.attn.qkv.bias", "model.visual.g_idx"] {
        model.tensors.insert(name.to_owned(), Tensor { dtype: "F32", shape: vec![1], bytes: vec![0; 4] });
    }
    // A head beside the embedding that is the embedding.
    *model.text("tie_word_embeddings") = json!(true);
    for part in ["weight", "scales", "biases"] {
        let embedding = model.tensor(&format!("embed_tokens.{part}")).clone();
        model.tensors.insert(format!("language_model.lm_head.{part}"), embedding);
    }
    let mut block = model.config["quantization"].clone();
    model.config["quantization_config"] = block.clone();
    let folder = tempfile::tempdir().unwrap();
    model.write(folder.path());
    let warnings = open(folder.path()).unwrap().0.warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].starts_with("7 tensors are not part of this model and were ignored: "), "{warnings:?}");

    block["bits"] = json!(8);
    for other in [block, json!({"quant_method": "fp8"}), json!("fp8")] {
        model.config["quantization_config"] = other;
        model.write(folder.path());
        let warnings = open(folder.path()).unwrap().0.warnings();
        assert_eq!(
            warnings[0],
            "config.json has `quantization` and `quantization_config`, which differ; the first is used"
        );
    }
}

#[test]
fn a_tied_head_is_the_embedding() {
    let mut model = Small::new();
    *model.text("tie_word_embeddings") = json!(true);
    model.tensors.retain(|name, _| !name.contains("lm_head"));
    let folder = tempfile::tempdir().unwrap();
    model.write(folder.path());
    let (_, all) = open(folder.path()).unwrap();
    let find = |wanted: &str| &all.matrices.iter().find(|(path, _)| path == wanted).unwrap().1;
    assert_eq!(find("lm_head"), find("embed_tokens"));
}

#[test]
fn dense_matrices_and_wide_vectors_are_read() {
    let mut model = Small::new();
    for module in ["embed_tokens", "layers.0.linear_attn.in_proj_a", "layers.1.mlp.switch_mlp.up_proj"] {
        for part in ["weight", "scales", "biases"] {
            model.remove(&format!("{module}.{part}"));
        }
    }
    model.insert("embed_tokens.weight", "BF16", &[5, 64]);
    model.insert("layers.0.linear_attn.in_proj_a.weight", "F32", &[2, 64]);
    model.insert("layers.1.mlp.switch_mlp.up_proj.weight", "F16", &[3, 64, 64]);
    model.config["quantization"][format!("{PREFIX}embed_tokens")] = json!(false);
    let (f, h) = ([0.1_f32, -2.0], [f16::from_f32(0.1), f16::from_f32(-2.0)]);
    *model.tensor("layers.0.linear_attn.A_log") =
        Tensor { dtype: "F32", shape: vec![2], bytes: f.iter().flat_map(|x| x.to_le_bytes()).collect() };
    *model.tensor("layers.0.linear_attn.dt_bias") =
        Tensor { dtype: "F16", shape: vec![2], bytes: h.iter().flat_map(|x| x.to_le_bytes()).collect() };
    let folder = tempfile::tempdir().unwrap();
    model.write(folder.path());

    let (_, all) = open(folder.path()).unwrap();
    let format = |wanted: &str| all.matrices.iter().find(|(path, _)| path == wanted).unwrap().1.format;
    assert_eq!(format("embed_tokens"), Format::Dense(DType::Bf16));
    assert_eq!(format("layers.0.linear_attn.in_proj_a"), Format::Dense(DType::F32));
    assert_eq!(format("layers.1.mlp.experts.up_proj"), Format::Dense(DType::F16));
    let vector = |wanted: &str| all.vectors.iter().find(|(path, _)| path == wanted).unwrap().1.clone();
    assert_eq!(vector("layers.0.linear_attn.A_log"), f);
    assert_eq!(vector("layers.0.linear_attn.dt_bias"), h.map(f16::to_f32));
}

#[test]
fn without_a_quantization_block_shapes_decide() {
    let mut model = Small::new();
    model.config.as_object_mut().unwrap().remove("quantization");
    let folder = tempfile::tempdir().unwrap();
    model.write(folder.path());
    let (checkpoint, all) = open(folder.path()).unwrap();
    check_bytes(&model, &checkpoint, &all);
    let bits = |wanted: &str| match all.matrices.iter().find(|(path, _)| path == wanted).unwrap().1.format {
        Format::Affine { bits, .. } => bits,
        Format::Dense(_) => 0,
    };
    assert_eq!((bits("lm_head"), bits("layers.1.mlp.gate")), (4, 8));
}

#[test]
fn a_cached_model_must_be_complete() {
    let hub = tempfile::tempdir().unwrap();
    let repository = hub.path().join("models--owner--Some-Model.4bit");
    let snapshot = repository.join("snapshots").join("0123abc");
    let shard = |name: &str| if name.contains("layers.1") { "b.safetensors" } else { "a.safetensors" };
    Small::new().write_sharded(&snapshot, shard);
    let find = || cached_model(hub.path(), "owner/Some-Model.4bit");
    assert_eq!(find(), None, "no refs/main yet");

    fs::create_dir_all(repository.join("refs")).unwrap();
    fs::write(repository.join("refs/main"), "0123abc\n").unwrap();
    assert_eq!(find(), Some(snapshot.clone()));
    assert_eq!(open(&snapshot).unwrap().0.name(), "owner/Some-Model.4bit");
    for other in ["owner/Other", "Some-Model.4bit", "../owner/Some-Model.4bit", "owner/..", ""] {
        assert_eq!(cached_model(hub.path(), other), None, "{other}");
    }

    let whole = fs::read(snapshot.join("b.safetensors")).unwrap();
    fs::write(snapshot.join("b.safetensors"), &whole[..whole.len() - 1]).unwrap();
    assert_eq!(find(), None, "a truncated shard");
    fs::remove_file(snapshot.join("b.safetensors")).unwrap();
    assert_eq!(find(), None, "an absent shard");
    fs::write(snapshot.join("b.safetensors"), &whole).unwrap();
    fs::remove_file(snapshot.join("tokenizer.json")).unwrap();
    assert_eq!(find(), None, "no tokenizer");
    fs::write(repository.join("refs/main"), "../../elsewhere").unwrap();
    assert_eq!(find(), None, "a revision that leads out");
}
