//! What `lily inspect` says of every architecture, quantization and layout.

use lily_engine::engine::{Engine, EngineOptions, ModelSource, Precision};
use lily_engine::report::{self, InspectQuery};

use crate::harness;
use crate::support::{DEMO, root};

fn inspect(source: &ModelSource) -> String {
    let query = InspectQuery { precision: Precision::Fast, context: None, prefill_chunk: 2048 };
    report::inspect(source, query).unwrap()
}

#[test]
fn every_architecture_and_quantization_has_its_table() {
    for folder in harness::architectures() {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        insta::assert_snapshot!(name, inspect(&ModelSource::Folder(folder)));
    }
    insta::assert_snapshot!("demo", inspect(&ModelSource::Embedded(DEMO)));
}

#[test]
fn a_folder_without_weights_is_described_by_its_config() {
    let folder = tempfile::tempdir().unwrap();
    for (config, name) in [("qwen3_6_35b_a3b_4bit", "35b-4bit"), ("qwen3_6_35b_a3b", "35b-bf16")] {
        let config = root().join(format!("golden/checkpoint/{config}.config.json"));
        let folder = folder.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        std::fs::copy(config, folder.join("config.json")).unwrap();
        insta::assert_snapshot!(name, inspect(&ModelSource::Folder(folder)));
    }
}

#[test]
fn damaged_files_are_refused_as_when_running() {
    let folder = tempfile::tempdir().unwrap();
    let source = ModelSource::Folder(folder.path().to_owned());
    let query = InspectQuery { precision: Precision::Fast, context: None, prefill_chunk: 2048 };
    let refusal = || report::inspect(&source, query).unwrap_err().to_string();
    assert!(refusal().ends_with("there is no config.json"));
    std::fs::copy(root().join("golden/tiny/config.json"), folder.path().join("config.json")).unwrap();
    std::fs::write(folder.path().join("model.safetensors"), b"short").unwrap();
    assert!(refusal().ends_with("model.safetensors: 5 bytes are too few for a safetensors file"));
    let too_long = InspectQuery { context: Some(1 << 40), ..query };
    std::fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    assert!(report::inspect(&source, too_long).unwrap_err().to_string().contains("--context"));
}

/// The same sums in the same words, whether a model is described or refused.
#[test]
fn inspect_and_a_refusal_tell_the_same_memory() {
    let text = inspect(&ModelSource::Embedded(DEMO));
    let number = |name: &str| {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(name)).unwrap_or_else(|| panic!("{text}"));
        line.split("  ").find(|part| !part.trim().is_empty()).unwrap().trim().to_owned()
    };
    let options = EngineOptions {
        memory: Some(20_000_000),
        context_length: Some(32_768),
        ..harness::demo_options(Precision::Fast)
    };
    let refused = Engine::open(&options).err().unwrap().to_string();
    let parts = ["weights", "KV cache", "state", "scratch", "tokenizer"].map(|name| format!("{} {name}", number(name)));
    let words = format!("needs {} ({}), but 20.0 MB", number("needs"), parts.join(" + "));
    assert!(refused.contains(&words), "{refused}\n{words}");
}
