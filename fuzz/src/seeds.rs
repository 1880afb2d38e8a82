//! The first inputs of the fuzzer, from the goldens: each checkpoint without its data, and each published configuration.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::{PART, SHARD};

/// Writes them where the alias in `.cargo/config.toml` tells libFuzzer to look; it runs in the folder `fuzz`.
///
/// # Panics
/// A golden cannot be read, or a file not be written.
pub fn prepare(target: &str) {
    let out = Path::new("corpus").join(target);
    fs::create_dir_all(&out).expect("makes the folder");
    fs::create_dir_all("artifacts").expect("makes the folder");
    for folder in checkpoints() {
        let name = folder.file_name().expect("a folder");
        fs::write(out.join(name), seed_of(&folder)).expect("writes a seed");
    }
    for config in listing(Path::new("../golden/checkpoint")).iter().filter(|path| has_extension(path, "json")) {
        let name = config.file_name().expect("a file");
        fs::write(out.join(name), fs::read(config).expect("reads")).expect("writes a seed");
    }
}

fn checkpoints() -> Vec<PathBuf> {
    let mut all = listing(Path::new("../golden/architectures"));
    all.retain(|path| path.join("config.json").exists());
    all.extend(["../golden/tiny", "../models/lily-demo"].map(PathBuf::from));
    all
}

fn listing(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths
}

fn has_extension(path: &Path, wanted: &str) -> bool {
    path.extension().is_some_and(|extension| extension == wanted)
}

/// In the order of the parts. An index of one file and the demo's tokenizer are left out: they would be most of the
/// input.
fn seed_of(folder: &Path) -> Vec<u8> {
    let read = |name: &str| fs::read(folder.join(name)).unwrap_or_default();
    let weights: Vec<PathBuf> = listing(folder).into_iter().filter(|path| is_weights(path)).collect();
    let headers: Vec<Vec<u8>> = weights.iter().map(|path| header(path)).collect();
    let parts = [
        read("config.json"),
        headers.join(&[SHARD][..]),
        if weights.len() > 1 { read("model.safetensors.index.json") } else { Vec::new() },
        Vec::new(),
        read("generation_config.json"),
        read("tokenizer_config.json"),
        read("chat_template.jinja"),
        byte_tokenizer(),
    ];
    parts.join(&[PART][..])
}

/// A tokenizer of single bytes and one control token.
pub fn byte_tokenizer() -> Vec<u8> {
    let printable = |byte: &u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let shifted = (0..256 - (0..256).filter(printable).count() as u32).map(|byte| byte + 0x100);
    let characters = (0..256).filter(printable).chain(shifted).filter_map(char::from_u32);
    let vocab: Map<String, Value> = characters.zip(0..).map(|(c, id)| (c.to_string(), json!(id))).collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let split =
        json!({"type": "Split", "pattern": {"Regex": r"\p{N}|\s+(?!\S)"}, "behavior": "Isolated", "invert": false});
    let added = json!({"id": 256, "content": "<|im_end|>", "special": true});
    json!({
        "added_tokens": [added], "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]}, "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    })
    .to_string()
    .into_bytes()
}

fn is_weights(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("model") && has_extension(path, "safetensors")
}

fn header(path: &Path) -> Vec<u8> {
    let bytes = fs::read(path).expect("reads");
    let (length, rest) = bytes.split_first_chunk().expect("a length");
    rest[..u64::from_le_bytes(*length) as usize].to_vec()
}
