//! Any bytes as the files of a model: opening it, loading its weights, reading its text files and describing a step of
//! it give a value or one sentence. They never panic, hang, or take memory because a file says so.
#![no_main]

use std::borrow::Cow;
use std::path::Path;
use std::sync::LazyLock;

use lily_engine::checkpoint::{Checkpoint, Declared};
use lily_engine::engine::{ModelSource, Precision};
use lily_engine::model::weights::Weights;
use lily_engine::report::{self, InspectQuery, PlanQuery};
use lily_engine::text::Codec;
use lily_fuzz::{Parts, seeds};

libfuzzer_sys::fuzz_target!(init: seeds::prepare("checkpoint"), |input: &[u8]| {
    let parts = Parts::of(input);
    let folder = tempfile::tempdir_in(memory()).expect("a folder");
    parts.write(folder.path()).expect("writes");
    load(folder.path());
    read_text(&parts);
    if let Ok(config) = std::str::from_utf8(parts.config()) {
        describe(config);
    }
});

/// A file system in memory, where there is one.
fn memory() -> &'static Path {
    static FOLDER: LazyLock<std::path::PathBuf> = LazyLock::new(|| {
        let shm = Path::new("/dev/shm");
        if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() }
    });
    &FOLDER
}

fn load(folder: &Path) {
    let source = ModelSource::Folder(folder.to_owned());
    let query = InspectQuery { precision: Precision::Fast, context: None, prefill_chunk: 64 };
    if let Err(error) = report::inspect(&source, query) {
        return expect_sentence(Some(error));
    }
    let opened = Checkpoint::open(&source).and_then(|mut checkpoint| {
        let config = checkpoint.config().clone();
        let weights = Weights::load(&config, &mut checkpoint)?;
        for stored in weights.embed_tokens.stack.iter().chain(weights.lm_head.stack.iter()) {
            assert_eq!(checkpoint.bytes(stored.weight).len() as u64, stored.weight.bytes);
        }
        let _ = (checkpoint.unknown(), checkpoint.weight_bytes(), checkpoint.eos_token_ids(), checkpoint.name());
        Ok(())
    });
    expect_sentence(opened.err());
}

fn read_text(parts: &Parts<'_>) {
    let file = |name: &str| match name {
        "tokenizer.json" => Some(Cow::Borrowed(parts.file(name).unwrap_or(&BYTES))),
        name => parts.file(name).map(Cow::Borrowed),
    };
    match Codec::open(&file) {
        Ok(codec) => {
            let ids = codec.tokenizer().encode("Zwei Häuser <|im_end|>\n\u{0}").unwrap_or_default();
            let _ = codec.tokenizer().decode(&ids, true);
        }
        Err(error) => expect_sentence(Some(error)),
    }
}

/// For inputs that bring no tokenizer.
static BYTES: LazyLock<Vec<u8>> = LazyLock::new(seeds::byte_tokenizer);

fn describe(config: &str) {
    expect_sentence(Declared::from_config(config).err());
    for decode in [true, false] {
        let query = PlanQuery {
            tokens: if decode { 1 } else { 40 },
            decode,
            context: 3,
            precision: if decode { Precision::Fast } else { Precision::Exact },
            without: Vec::new(),
            dispatches: decode,
        };
        expect_sentence(report::plan(config, &query).err());
    }
}

fn expect_sentence(error: Option<impl std::fmt::Display>) {
    if let Some(error) = error {
        let sentence = error.to_string();
        assert!(!sentence.is_empty() && sentence.len() < 4000, "{sentence:?}");
    }
}
