//! The first inputs of the fuzzer, from the goldens: each checkpoint without its data, and each published configuration.

use std::fs;
use std::path::{Path, PathBuf};

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

/// In the order of the parts. The demo's tokenizer is left out: it would be most of the input.
fn seed_of(folder: &Path) -> Vec<u8> {
    let read = |name: &str| fs::read(folder.join(name)).unwrap_or_default();
    let headers: Vec<Vec<u8>> = listing(folder).iter().filter(|path| is_weights(path)).map(|path| header(path)).collect();
    let parts = [
        read("config.json"),
        headers.join(&[SHARD][..]),
        read("model.safetensors.index.json"),
        Vec::new(),
        read("generation_config.json"),
        read("tokenizer_config.json"),
        read("chat_template.jinja"),
    ];
    parts.join(&[PART][..])
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
