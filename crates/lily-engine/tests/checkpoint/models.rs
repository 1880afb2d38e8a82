//! Whole models: every tensor is found, none is left over, and the bytes are the ones the `safetensors` crate finds.

use std::fs;
use std::path::Path;

use half::bf16;
use lily_engine::checkpoint::{Checkpoint, Declared};
use lily_engine::engine::ModelSource;
use lily_kernels::tensor::{DType, Format, Matrix};
use safetensors::SafeTensors;

use crate::everything::{Everything, parts_of};
use crate::support::{DEMO, root, shared};

/// Takes every tensor of a model of one file and compares each byte with what the `safetensors` crate reads.
fn check_model(source: &ModelSource) -> (Checkpoint, Everything) {
    let mut checkpoint = Checkpoint::open(source).unwrap();
    let config = checkpoint.config().clone();
    let all = Everything::of(&config, &mut checkpoint).unwrap();
    assert_eq!(checkpoint.unknown(), Vec::<&str>::new());

    let [file] = checkpoint.weight_files() else { panic!("one weight file expected") };
    let reference = SafeTensors::deserialize(file.bytes()).unwrap();
    for (path, matrix) in &all.matrices {
        check_matrix(&checkpoint, &reference, path, matrix);
    }
    for (path, values) in &all.vectors {
        let tensor = reference.tensor(&format!("language_model.model.{path}")).unwrap();
        let widened: Vec<f32> = if tensor.dtype() == safetensors::Dtype::BF16 {
            tensor.data().chunks(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
        } else {
            assert_eq!(tensor.dtype(), safetensors::Dtype::F32, "{path}");
            tensor.data().chunks(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
        };
        assert_eq!(values, &widened, "{path}");
    }
    let text: usize =
        reference.iter().filter(|(name, _)| !name.starts_with("vision_tower.")).map(|(_, t)| t.data().len()).sum();
    assert_eq!(checkpoint.weight_bytes(), text as u64);
    (checkpoint, all)
}

fn check_matrix(checkpoint: &Checkpoint, reference: &SafeTensors<'_>, path: &str, matrix: &Matrix) {
    let module = match path {
        "lm_head" => "language_model.lm_head".to_owned(),
        path => format!("language_model.model.{}", path.replace("mlp.experts", "mlp.switch_mlp")),
    };
    let small = path.ends_with("mlp.gate") || path.ends_with("shared_expert_gate");
    let bits = if small { 8 } else { 4 };
    assert_eq!(matrix.format, Format::Affine { bits, group: 64, scale: DType::Bf16 }, "{path}");
    for (part, bytes) in parts_of(checkpoint, matrix) {
        let expected = reference.tensor(&format!("{module}.{part}")).unwrap();
        assert!(bytes == expected.data(), "{path}.{part}");
    }
}

#[test]
fn the_demo_model_opens_embedded_and_from_its_folder() {
    let (embedded, all) = check_model(&ModelSource::Embedded(DEMO));
    assert_eq!(embedded.name(), "lily-demo");
    assert_eq!(embedded.eos_token_ids(), [4070, 4072]);
    assert_eq!(embedded.generation_config().temperature, 0.6);
    let taps = &all.vectors.iter().find(|(path, _)| path == "layers.0.linear_attn.conv1d.weight").unwrap().1;
    assert_eq!(taps.len(), 1024 * 4);

    let folder = root().join("models/lily-demo");
    let (opened, _) = check_model(&ModelSource::Folder(folder.clone()));
    assert_eq!(opened.name(), "lily-demo");
    assert_eq!(opened.config(), embedded.config());
    assert_eq!(opened.weight_bytes(), embedded.weight_bytes());
    for name in ["config.json", "tokenizer.json", "model.safetensors.index.json"] {
        let bytes = fs::read(folder.join(name)).unwrap();
        assert_eq!(opened.file(name).unwrap().unwrap(), bytes);
        assert_eq!(embedded.file(name).unwrap().unwrap(), bytes);
    }
    assert_eq!(opened.file("absent.json").unwrap(), None);
    assert_eq!(embedded.file("absent.json").unwrap(), None);
}

#[test]
fn models_written_by_mlx_open() {
    check_model(&ModelSource::Folder(root().join("golden/tiny")));
    for below in ["oracle/ckpt/tiny-mlx4", "oracle/ckpt/tiny-calm", "spec/fixture_tiny_mlx4bit"] {
        if let Some(folder) = shared(below) {
            let (checkpoint, _) = check_model(&ModelSource::Folder(folder));
            assert!(Path::new(below).ends_with(checkpoint.name()));
        }
    }
}

#[test]
fn the_35b_config_declares_the_published_bytes() {
    let json = fs::read_to_string(root().join("golden/checkpoint/qwen3_6_35b_a3b_4bit.config.json")).unwrap();
    let mut declared = Declared::from_config(&json).unwrap();
    let config = declared.config().clone();
    let all = Everything::of(&config, &mut declared).unwrap();
    assert_eq!(declared.bytes(), 19_508_787_456);
    let tensors = 3 * all.matrices.len() + all.vectors.len();
    assert_eq!(tensors, 1757);

    // Asking again places nothing twice, and the slices tile the file.
    let again = Everything::of(&config, &mut declared).unwrap();
    assert_eq!(again.matrices, all.matrices);
    assert_eq!(declared.bytes(), 19_508_787_456);

    let json = fs::read_to_string(root().join("golden/checkpoint/qwen3_6_35b_a3b.config.json")).unwrap();
    let mut declared = Declared::from_config(&json).unwrap();
    let config = declared.config().clone();
    Everything::of(&config, &mut declared).unwrap();
    assert_eq!(declared.bytes(), 2 * 34_660_610_688);
}
