//! Whatever the bytes of a model's files are, opening it gives a model or a sentence.

use std::fs;
use std::path::Path;

use lily_engine::checkpoint::Declared;
use lily_engine::model::config::{Config, GenerationConfig};
use lily_kernels::tensor::Stored;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::everything::Everything;
use crate::small::{Small, open, safetensors_file};

/// Opens the model, takes every tensor and reads every byte that it gives out.
fn use_all(folder: &Path) {
    match open(folder) {
        Ok((checkpoint, all)) => {
            for (_, matrix) in &all.matrices {
                let affine = |stored: &Stored| stored.affine.map_or([stored.weight; 2], Into::into);
                let slices = matrix.stack.iter().flat_map(|stored| [stored.weight].into_iter().chain(affine(stored)));
                for slice in slices {
                    assert_eq!(checkpoint.bytes(slice).len() as u64, slice.bytes);
                }
            }
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
    }
}

/// What happens to a valid file.
#[derive(Debug, Clone)]
enum Damage {
    Truncate(prop::sample::Index),
    Set(Vec<(prop::sample::Index, u8)>),
    Insert(prop::sample::Index, Vec<u8>),
    Remove(prop::sample::Index, usize),
}

impl Damage {
    fn any() -> impl Strategy<Value = Self> {
        let index = any::<prop::sample::Index>;
        // Digits, quotes and brackets keep a header readable more often than random bytes do.
        let byte = prop_oneof![any::<u8>(), proptest::sample::select(b"0123456789[]{}\",:-. ".to_vec())];
        prop_oneof![
            index().prop_map(Self::Truncate),
            prop::collection::vec((index(), byte.clone()), 1..4).prop_map(Self::Set),
            (index(), prop::collection::vec(byte, 1..6)).prop_map(|(at, bytes)| Self::Insert(at, bytes)),
            (index(), 1_usize..6).prop_map(|(at, count)| Self::Remove(at, count)),
        ]
    }

    /// Damages the first `reach` bytes.
    fn apply(&self, bytes: &mut Vec<u8>, reach: usize) {
        match self {
            Self::Truncate(at) => bytes.truncate(at.index(reach)),
            Self::Set(changes) => changes.iter().for_each(|(at, byte)| bytes[at.index(reach)] = *byte),
            Self::Insert(at, inserted) => {
                let at = at.index(reach);
                bytes.splice(at..at, inserted.iter().copied());
            }
            Self::Remove(at, count) => {
                let at = at.index(reach);
                bytes.drain(at..(at + count).min(reach));
            }
        }
    }
}

/// Puts another value in place of one of a JSON document's leaves.
fn replace_leaf(value: &mut Value, chosen: &mut usize, with: &Value) -> bool {
    match value {
        Value::Object(object) => object.values_mut().any(|inner| replace_leaf(inner, chosen, with)),
        Value::Array(array) if !array.is_empty() => array.iter_mut().any(|inner| replace_leaf(inner, chosen, with)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            if *chosen == 0 {
                *value = with.clone();
                return true;
            }
            *chosen -= 1;
            false
        }
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (0_u64..300).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
        prop::collection::vec(any::<u32>(), 0..3).prop_map(Value::from),
        Just(json!({})),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn on_random_weight_files(bytes in prop::collection::vec(any::<u8>(), 0..200), header in 0_u64..250) {
        let folder = tempfile::tempdir().unwrap();
        Small::new().write_config(folder.path());
        fs::write(folder.path().join("model.safetensors"), &bytes).unwrap();
        use_all(folder.path());
        fs::write(folder.path().join("model.safetensors"), [&header.to_le_bytes()[..], &bytes].concat()).unwrap();
        use_all(folder.path());
    }

    #[test]
    fn on_damaged_weight_files(damage in prop::collection::vec(Damage::any(), 1..3), whole: bool) {
        let folder = tempfile::tempdir().unwrap();
        let model = Small::new();
        model.write_config(folder.path());
        let mut bytes = safetensors_file(model.tensors.iter(), 3);
        for damage in damage {
            let header = bytes.first_chunk().map_or(0, |length| u64::from_le_bytes(*length));
            let reach = if whole { bytes.len() } else { bytes.len().min((header as usize).saturating_add(8)) };
            if reach > 0 {
                damage.apply(&mut bytes, reach);
            }
        }
        fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
        use_all(folder.path());
    }

    #[test]
    fn on_damaged_json(damage in Damage::any(), file in 0_usize..2) {
        let folder = tempfile::tempdir().unwrap();
        let shard = |name: &str| if name.contains("layers.1") { "b" } else { "a" };
        Small::new().write_sharded(folder.path(), shard);
        let path = folder.path().join(["config.json", "model.safetensors.index.json"][file]);
        let mut bytes = fs::read(&path).unwrap();
        let reach = bytes.len();
        damage.apply(&mut bytes, reach);
        fs::write(path, bytes).unwrap();
        use_all(folder.path());
    }

    #[test]
    fn on_other_values_in_the_config(chosen in 0_usize..60, with in any_json()) {
        let mut model = Small::new();
        replace_leaf(&mut model.config, &mut chosen.clone(), &with);
        let folder = tempfile::tempdir().unwrap();
        model.write(folder.path());
        use_all(folder.path());
    }

    #[test]
    fn on_generation_configs(json in prop::collection::btree_map("temperature|top_[kp]|min_p|eos_token_id", any_json(), 0..4)) {
        let _ = GenerationConfig::parse(&serde_json::to_string(&json).unwrap());
    }
}

/// The largest sizes that a config may state must not overflow a byte count.
#[test]
fn on_the_largest_config() {
    let mut model = Small::new();
    for (field, value) in [
        ("hidden_size", 1 << 18),
        ("num_hidden_layers", 1 << 10),
        ("num_attention_heads", 1 << 10),
        ("num_key_value_heads", 1 << 10),
        ("head_dim", 1 << 10),
        ("linear_num_value_heads", 1 << 10),
        ("linear_num_key_heads", 1 << 10),
        ("linear_key_head_dim", 1 << 10),
        ("linear_value_head_dim", 1 << 10),
        ("num_experts", 1 << 12),
        ("moe_intermediate_size", 1 << 18),
        ("shared_expert_intermediate_size", 1 << 18),
        ("max_position_embeddings", 1 << 26),
    ] {
        *model.text(field) = json!(value);
        let mut beyond = model.clone();
        *beyond.text(field) = json!(value + 1);
        assert!(Config::parse(&beyond.config.to_string()).unwrap_err().to_string().contains("from 1 to"), "{field}");
    }
    // All layers would take gigabytes of zeros here; two are enough to multiply from.
    *model.text("num_hidden_layers") = json!(2);
    model.config["quantization"].take();
    let mut declared = Declared::from_config(&model.config.to_string()).unwrap();
    let config = declared.config().clone();
    Everything::of(&config, &mut declared).unwrap();
    assert!((1 << 60..1 << 62).contains(&declared.bytes().checked_mul(512).unwrap()));
}
