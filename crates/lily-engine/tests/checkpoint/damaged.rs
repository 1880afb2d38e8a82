//! Every way in which a model's files can be wrong, and the sentence that says so.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::small::{Small, Tensor, file_of, open, safetensors_file};

/// A model that was damaged before or after it was written, and the sentence; `{}` is its folder.
struct Case {
    damage: fn(&Path, Small) -> PathBuf,
    sentence: &'static str,
}

/// Damages the model before it is written.
macro_rules! model {
    (|$model:ident| $damage:expr, $sentence:literal) => {
        Case {
            damage: |folder, mut $model| {
                $damage;
                $model.write(folder);
                folder.to_owned()
            },
            sentence: $sentence,
        }
    };
}

/// Damages the files after they are written.
macro_rules! files {
    (|$folder:ident| $damage:expr, $sentence:literal) => {
        Case {
            damage: |$folder, model| {
                model.write($folder);
                $damage;
                $folder.to_owned()
            },
            sentence: $sentence,
        }
    };
}

/// A `model.safetensors` of this header and these data bytes.
macro_rules! header {
    ($header:expr, $data:expr, $sentence:literal) => {
        files!(|folder| weights(folder, &file_of(&$header.to_string(), &[0; $data])), $sentence)
    };
}

fn weights(folder: &Path, bytes: &[u8]) {
    fs::write(folder.join("model.safetensors"), bytes).unwrap();
}

fn make_folder(folder: &Path, name: &str) {
    let _ = fs::remove_file(folder.join(name));
    fs::create_dir(folder.join(name)).unwrap();
}

fn check(cases: &[Case]) {
    for (row, case) in cases.iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let opened = (case.damage)(folder.path(), Small::new());
        let error = match open(&opened) {
            Ok(_) => panic!("row {row} opened: {}", case.sentence),
            Err(error) => error.to_string(),
        };
        assert_eq!(error.replace(&folder.path().display().to_string(), "{}"), case.sentence, "row {row}");
    }
}

#[test]
#[cfg(unix)] // the system words some of these
fn folders() {
    check(&[
        Case {
            damage: |folder, _| folder.join("absent"),
            sentence: "{}/absent is not a model folder: No such file or directory (os error 2)",
        },
        Case {
            damage: |folder, model| {
                model.write(folder);
                folder.join("model.safetensors")
            },
            sentence: "{}/model.safetensors is not a model folder: it is a file; give the folder around it",
        },
        files!(|folder| fs::remove_file(folder.join("config.json")).unwrap(), "{}: there is no config.json"),
        files!(|folder| make_folder(folder, "config.json"), "{}/config.json: Is a directory (os error 21)"),
        files!(
            |folder| fs::write(folder.join("config.json"), b"{\"\xff\"}").unwrap(),
            "{}/config.json: not UTF-8 text: invalid utf-8 sequence of 1 bytes from index 2"
        ),
        files!(
            |folder| fs::remove_file(folder.join("model.safetensors")).unwrap(),
            "{}: there is neither model.safetensors nor model.safetensors.index.json"
        ),
        files!(
            |folder| make_folder(folder, "model.safetensors"),
            "{}/model.safetensors: it is a directory, not a file"
        ),
        files!(
            |folder| make_folder(folder, "model.safetensors.index.json"),
            "{}/model.safetensors.index.json: Is a directory (os error 21)"
        ),
        files!(
            |folder| make_folder(folder, "generation_config.json"),
            "{}/generation_config.json: Is a directory (os error 21)"
        ),
    ]);
}

#[test]
fn files_of_another_kind() {
    check(&[
        files!(|folder| weights(folder, b""), "{}/model.safetensors: it is empty"),
        files!(|folder| weights(folder, b"12345"), "{}/model.safetensors: 5 bytes are too few for a safetensors file"),
        files!(
            |folder| weights(folder, b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"),
            "{}/model.safetensors: this is a Git LFS pointer, not the weights themselves; fetch them with `git lfs pull`"
        ),
        files!(
            |folder| weights(folder, &[0xff; 100]),
            "{}/model.safetensors: the first 8 bytes announce a header of 18446744073709551615 bytes, so this is no \
             safetensors file"
        ),
        files!(
            |folder| weights(folder, &[&100_u64.to_le_bytes()[..], b"{}"].concat()),
            "{}/model.safetensors: the header should take 100 bytes, but only 2 follow: truncated?"
        ),
        header!(
            "{\"a\": ",
            0,
            "{}/model.safetensors: the safetensors header is bad: EOF while parsing a value at line 1 column 6"
        ),
        header!(
            "[]",
            0,
            "{}/model.safetensors: the safetensors header is bad: invalid type: sequence, expected an object of \
             tensors at line 1 column 0"
        ),
        header!(
            r#"{"a": 1, "a": 2}"#,
            0,
            "{}/model.safetensors: the safetensors header is bad: a appears twice at line 1 column 12"
        ),
    ]);
}

#[test]
fn headers_that_contradict_themselves() {
    check(&[
        header!(
            json!({"a": {"shape": [1], "data_offsets": [0, 4]}}),
            4,
            "{}/model.safetensors: tensor a has a bad header entry: missing field `dtype`"
        ),
        header!(
            json!({"a": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}),
            4,
            "{}/model.safetensors: tensor a has a bad header entry: invalid value: integer `-4`, expected usize"
        ),
        header!(
            json!({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}),
            4,
            "{}/model.safetensors: tensor a has data_offsets [4, 0], which run backwards"
        ),
        header!(
            json!({"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 20]}}),
            20,
            "{}/model.safetensors: tensor a takes 20 bytes, but shape [2, 3] of F32 needs 24"
        ),
        header!(
            json!({"a": {"dtype": "F32", "shape": [1u64 << 40, 1u64 << 40], "data_offsets": [0, 4]}}),
            4,
            "{}/model.safetensors: tensor a has shape [1099511627776, 1099511627776], which is larger than any memory"
        ),
        header!(
            json!({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
                   "b": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}),
            8,
            "{}/model.safetensors: tensor b overlaps a"
        ),
        header!(
            json!({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                   "b": {"dtype": "F32", "shape": [1], "data_offsets": [8, 12]}}),
            12,
            "{}/model.safetensors: tensor b starts at data byte 8, but nothing describes the bytes from 4 on"
        ),
        header!(
            json!({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}),
            7,
            "{}/model.safetensors: truncated: the header describes 8 bytes of data, the file holds 7"
        ),
        header!(
            json!({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}),
            10,
            "{}/model.safetensors: 2 bytes follow the last tensor"
        ),
    ]);
}

#[test]
fn indexes() {
    fn index(folder: &Path, model: &Small, text: &str) -> PathBuf {
        model.write(folder);
        fs::write(folder.join("model.safetensors.index.json"), text).unwrap();
        folder.to_owned()
    }
    check(&[
        Case {
            damage: |folder, model| index(folder, &model, "{"),
            sentence: "{}/model.safetensors.index.json: not a valid index: EOF while parsing an object at line 1 column 1",
        },
        Case {
            damage: |folder, model| index(folder, &model, r#"{"weight_map": 3}"#),
            sentence: "{}/model.safetensors.index.json: there is no object `weight_map`",
        },
        Case {
            damage: |folder, model| index(folder, &model, r#"{"weight_map": {"vision_tower.a": "v.safetensors"}}"#),
            sentence: "{}/model.safetensors.index.json: `weight_map` names no tensor of a text model",
        },
        Case {
            damage: |folder, model| index(folder, &model, r#"{"weight_map": {"a": "../b.safetensors"}}"#),
            sentence: "{}/model.safetensors.index.json: `weight_map` places tensor a in \"../b.safetensors\", which is \
                       not the name of a file beside it",
        },
        Case {
            damage: |folder, model| index(folder, &model, r#"{"weight_map": {"a": 7}}"#),
            sentence: "{}/model.safetensors.index.json: `weight_map` places tensor a in 7, which is not the name of a \
                       file beside it",
        },
        Case {
            damage: |folder, model| index(folder, &model, r#"{"weight_map": {"a": "b.safetensors"}}"#),
            sentence: "{}/model.safetensors.index.json: names b.safetensors, but there is no such file",
        },
        Case {
            damage: |folder, model| index(folder, &model, r#"{"weight_map": {"a": "model.safetensors"}}"#),
            sentence: "{}/model.safetensors.index.json: places tensor a in model.safetensors, which does not hold it",
        },
        Case {
            damage: |folder, model| {
                model.write_sharded(folder, |name| if name.contains("lm_head") { "b" } else { "a" });
                fs::write(folder.join("b"), safetensors_file(model.tensors.iter().take(2), 0)).unwrap();
                fs::write(folder.join("a"), safetensors_file(model.tensors.iter(), 0)).unwrap();
                folder.to_owned()
            },
            sentence: "{}/b: tensor language_model.lm_head.biases is also in {}/a",
        },
    ]);
}

#[test]
fn missing_and_dense_tensors() {
    check(&[
        model!(|m| m.remove("norm.weight"), "{} has no tensor language_model.model.norm.weight"),
        model!(
            |m| m.remove("layers.0.mlp.gate.biases"),
            "{} has no tensor language_model.model.layers.0.mlp.gate.biases"
        ),
        model!(
            |m| m.remove("layers.0.mlp.gate.scales"),
            "{}/model.safetensors: tensor language_model.model.layers.0.mlp.gate.weight holds packed codes, but there \
             is no language_model.model.layers.0.mlp.gate.scales"
        ),
        model!(
            |m| m.insert("norm.weight", "BF16", &[65]),
            "{}/model.safetensors: tensor language_model.model.norm.weight has shape [65], but config.json makes it [64]"
        ),
        model!(
            |m| m.insert("norm.weight", "I32", &[64]),
            "{}/model.safetensors: tensor language_model.model.norm.weight is I32; Lily reads F32, BF16 and F16 here"
        ),
        model!(
            |m| {
                m.insert("layers.0.linear_attn.conv1d.weight", "BF16", &[128, 1, 4]);
                m.remove("layers.0.mlp.switch_mlp.up_proj.weight")
            },
            "{} has no tensor language_model.model.layers.0.mlp.experts.gate_up_proj"
        ),
        model!(
            |m| m.insert("layers.0.linear_attn.conv1d.weight", "BF16", &[128, 3, 1]),
            "{}/model.safetensors: tensor language_model.model.layers.0.linear_attn.conv1d.weight has shape \
             [128, 3, 1], but config.json makes it [128, 4, 1]"
        ),
    ]);
}

/// What changes the answers must not be left out.
#[test]
fn tensors_that_the_model_would_be_run_without() {
    check(&[
        model!(
            |m| m.insert("layers.1.self_attn.q_proj.bias", "BF16", &[128]),
            "{}/model.safetensors: tensor language_model.model.layers.1.self_attn.q_proj.bias belongs to \
             language_model.model.layers.1.self_attn.q_proj, which Lily computes without it"
        ),
        model!(
            |m| m.insert("layers.0.mlp.gate.e_score_correction_bias", "F32", &[3]),
            "{}/model.safetensors: tensor language_model.model.layers.0.mlp.gate.e_score_correction_bias belongs to \
             language_model.model.layers.0.mlp.gate, which Lily computes without it"
        ),
        model!(
            |m| m.insert("layers.0.linear_attn.A_log_scale", "F32", &[2]),
            "{}/model.safetensors: tensor language_model.model.layers.0.linear_attn.A_log_scale belongs to \
             language_model.model.layers.0.linear_attn.A_log, which Lily computes without it"
        ),
        model!(
            |m| m.insert("layers.1.self_attn.q_proj.lora_A.default.weight", "F32", &[8, 64]),
            "{}/model.safetensors: tensor language_model.model.layers.1.self_attn.q_proj.lora_A.default.weight is part \
             of a LoRA adapter; Lily runs models that it is merged into"
        ),
        model!(
            |m| m.insert("layers.1.self_attn.q_proj.weight_scale_inv", "F32", &[1, 1]),
            "{}/model.safetensors: tensor language_model.model.layers.1.self_attn.q_proj.weight_scale_inv belongs to a \
             quantization that Lily does not read, fp8 or another; it reads MLX's affine quantization"
        ),
        model!(
            |m| {
                let codes = m.remove("layers.1.self_attn.q_proj.weight");
                m.tensors.insert("language_model.model.layers.1.self_attn.q_proj.qweight".to_owned(), codes);
            },
            "{}/model.safetensors: tensor language_model.model.layers.1.self_attn.q_proj.qweight belongs to a GPTQ or \
             AWQ quantization; Lily reads MLX's affine quantization"
        ),
        model!(
            |m| m.insert("layers.2.input_layernorm.weight", "BF16", &[64]),
            "{}/model.safetensors: tensor language_model.model.layers.2.input_layernorm.weight belongs to layer 2, but \
             config.json has `num_hidden_layers` = 2"
        ),
        model!(
            |m| *m.text("tie_word_embeddings") = json!(true),
            "{}/model.safetensors: tensor language_model.lm_head.biases is not \
             language_model.model.embed_tokens.biases, but config.json has `tie_word_embeddings` = true"
        ),
        model!(
            |m| *m.text("num_experts") = json!(4),
            "{}/model.safetensors: tensor language_model.model.layers.0.mlp.gate.weight has shape [3, 16], but \
             config.json makes it [4] rows of packed codes"
        ),
        model!(
            |m| *m.text("num_experts") = json!(2),
            "{}/model.safetensors: tensor language_model.model.layers.0.mlp.gate.weight has shape [3, 16], but \
             config.json makes it [2] rows of packed codes"
        ),
    ]);
}

#[test]
fn quantized_tensors() {
    check(&[
        model!(
            |m| m.insert("embed_tokens.weight", "F32", &[5, 8]),
            "{}/model.safetensors: tensor language_model.model.embed_tokens.weight has scales, but is F32 instead of U32"
        ),
        model!(
            |m| m.insert("embed_tokens.biases", "F32", &[5, 1]),
            "{}/model.safetensors: tensor language_model.model.embed_tokens.biases is F32 [5, 1], but its scales are \
             BF16 [5, 1]"
        ),
        model!(
            |m| {
                m.insert("embed_tokens.scales", "BF16", &[5, 2]);
                m.insert("embed_tokens.biases", "BF16", &[5, 2]);
            },
            "{}/model.safetensors: tensor language_model.model.embed_tokens.weight and its scales have shapes [5, 8] \
             and [5, 2], which mean 4 bits in groups of 32, but config.json says 4 bits in groups of 64"
        ),
        model!(
            |m| {
                m.insert("embed_tokens.scales", "BF16", &[6, 1]);
                m.insert("embed_tokens.biases", "BF16", &[6, 1]);
            },
            "{}/model.safetensors: tensor language_model.model.embed_tokens.scales has shape [6, 1], which does not fit \
             codes of shape [5, 8]"
        ),
        model!(
            |m| {
                m.insert("embed_tokens.scales", "BF16", &[5, 3]);
                m.insert("embed_tokens.biases", "BF16", &[5, 3]);
            },
            "{}/model.safetensors: tensor language_model.model.embed_tokens.scales has 3 scales in each row of 64 \
             inputs, not one for each group"
        ),
        model!(
            |m| m.insert("embed_tokens.weight", "U32", &[5, 7]),
            "{}/model.safetensors: tensor language_model.model.embed_tokens.weight has 7 words in each row of 64 \
             inputs, not 1 to 8 bits for each"
        ),
        model!(
            |m| m.insert("layers.0.mlp.switch_mlp.up_proj.weight", "U32", &[2, 64, 8]),
            "{}/model.safetensors: tensor language_model.model.layers.0.mlp.switch_mlp.up_proj.weight has shape \
             [2, 64, 8], but config.json makes it [3, 64] rows of packed codes"
        ),
        model!(
            |m| *m.text("vocab_size") = json!(6),
            "{}/model.safetensors: tensor language_model.model.embed_tokens.weight has shape [5, 8], but \
             config.json makes it [6] rows of packed codes"
        ),
    ]);
}

#[test]
fn quantization_blocks() {
    fn packed(model: &mut Small, module: &str, words: usize) {
        model.tensor(&format!("{module}.weight")).shape = vec![5, words];
        model.tensor(&format!("{module}.weight")).bytes = vec![0; 5 * words * 4];
    }
    const EMBED: &str = "language_model.model.embed_tokens";
    check(&[
        model!(
            |m| packed(&mut m, "embed_tokens", 16),
            "{}/model.safetensors: tensor language_model.model.embed_tokens.weight and its scales have shapes [5, 16] \
             and [5, 1], which mean 8 bits in groups of 64, but config.json says 4 bits in groups of 64"
        ),
        model!(
            |m| m.config["quantization"][EMBED] = json!(false),
            "{}/model.safetensors: tensor language_model.model.embed_tokens.weight has scales, but config.json says it \
             is not quantized"
        ),
        model!(
            |m| {
                m.config["quantization"][EMBED] = json!({"bits": 7});
                packed(&mut m, "embed_tokens", 14);
            },
            "{}/model.safetensors: tensor language_model.model.embed_tokens.weight has 7 bits in groups of 64; Lily \
             reads 2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128"
        ),
        model!(
            |m| {
                m.config["quantization"][EMBED] = json!(true);
                m.remove("embed_tokens.scales");
                m.tensors.insert(
                    format!("{EMBED}.weight"),
                    Tensor { dtype: "BF16", shape: vec![5, 64], bytes: vec![0; 640] },
                );
            },
            "{}/model.safetensors: tensor language_model.model.embed_tokens.weight is not quantized, but config.json \
             says 4 bits in groups of 64"
        ),
    ]);
}
