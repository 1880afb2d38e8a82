//! One input of the fuzzer ↔ the files of a model: text parts in a fixed order, each ended by a separator that JSON
//! cannot hold. Weights have a header only; their data are zeros, as long as the header says.

#![forbid(unsafe_code)]

pub mod seeds;

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use serde_json::Value;

/// Ends a part.
pub const PART: u8 = 0x1e;
/// Ends a header, where there are several weight files.
pub const SHARD: u8 = 0x1d;

/// The most bytes of a weight file: more than any seed has, and quick to read.
const MAX_FILE: u64 = 64 << 20;

const CONFIG: usize = 0;
const HEADERS: usize = 1;
const LENGTHS: usize = 3;
/// Files of the text parts. `HEADERS` and `LENGTHS` make the weight files.
const NAMES: [&str; 8] = [
    "config.json",
    "",
    "model.safetensors.index.json",
    "",
    "generation_config.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "tokenizer.json",
];

/// The parts of an input; those that are absent are empty.
#[derive(Debug, Clone, Default)]
pub struct Parts<'a>([&'a [u8]; NAMES.len()]);

impl<'a> Parts<'a> {
    /// Takes an input apart.
    pub fn of(input: &'a [u8]) -> Self {
        let mut parts = Self::default();
        for (part, bytes) in parts.0.iter_mut().zip(input.splitn(NAMES.len(), |byte| *byte == PART)) {
            *part = bytes;
        }
        parts
    }

    /// `config.json`.
    pub fn config(&self) -> &'a [u8] {
        self.0[CONFIG]
    }

    /// The bytes of a file; `None` for an empty part.
    pub fn file(&self, name: &str) -> Option<&'a [u8]> {
        let part = NAMES.iter().position(|known| *known == name).filter(|part| !NAMES[*part].is_empty())?;
        (!self.0[part].is_empty()).then_some(self.0[part])
    }

    /// Writes the model's files into an empty folder.
    ///
    /// # Errors
    /// Those of the system.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        for (name, bytes) in NAMES.iter().zip(self.0) {
            if !name.is_empty() && !bytes.is_empty() {
                fs::write(folder.join(name), bytes)?;
            }
        }
        let headers: Vec<&[u8]> = self.0[HEADERS].split(|byte| *byte == SHARD).collect();
        for (number, header) in headers.iter().enumerate() {
            let name = match headers.len() {
                1 => "model.safetensors".to_owned(),
                count => format!("model-{:05}-of-{count:05}.safetensors", number + 1),
            };
            self.write_weights(&folder.join(name), header)?;
        }
        Ok(())
    }

    /// Length of the header, header, zeros. `LENGTHS` may hold two numbers to add: to the length, to the zeros.
    fn write_weights(&self, path: &Path, header: &[u8]) -> io::Result<()> {
        let mut lengths = std::str::from_utf8(self.0[LENGTHS]).unwrap_or_default().split(' ');
        let mut more = || lengths.next().and_then(|word| word.parse::<i64>().ok()).unwrap_or(0);
        let stated = (header.len() as u64).wrapping_add_signed(more());
        let zeros = data_bytes(header).saturating_add_signed(more());
        let mut file = File::create(path)?;
        file.write_all(&stated.to_le_bytes())?;
        file.write_all(header)?;
        // A hole: it takes no memory.
        file.set_len((8 + header.len() as u64).saturating_add(zeros).min(MAX_FILE))
    }
}

/// Where the last tensor of a header ends.
fn data_bytes(header: &[u8]) -> u64 {
    let Ok(Value::Object(tensors)) = serde_json::from_slice(header) else { return 0 };
    tensors.values().filter_map(|tensor| tensor["data_offsets"][1].as_u64()).max().unwrap_or(0)
}
