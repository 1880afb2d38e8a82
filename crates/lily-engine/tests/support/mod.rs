//! What the test programs share: where test data lies, and the demo model.
#![allow(dead_code, reason = "each test program uses a part")]

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use lily_engine::engine::EmbeddedModel;

/// The repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

macro_rules! demo_file {
    ($name:literal) => {
        ($name, include_bytes!(concat!("../../../../models/lily-demo/", $name)).as_slice())
    };
}

/// The demo model as the program embeds it.
pub static DEMO: EmbeddedModel = EmbeddedModel {
    name: "lily-demo",
    files: &[
        demo_file!("config.json"),
        demo_file!("generation_config.json"),
        demo_file!("model.safetensors"),
        demo_file!("model.safetensors.index.json"),
        demo_file!("tokenizer.json"),
        demo_file!("tokenizer_config.json"),
        demo_file!("chat_template.jinja"),
    ],
};

/// Larger test data, if this machine has it: in a `shared` beside any folder around this crate. Says so loudly if not.
pub fn shared(below: &str) -> Option<PathBuf> {
    let found = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .map(|ancestor| ancestor.join("shared").join(below))
        .find(|path| path.exists());
    if found.is_none() {
        // Not `eprintln!`, which the harness swallows when a test passes.
        let _ = writeln!(io::stderr(), "SKIP shared/{below}: not in any folder around the repository");
    }
    found
}
