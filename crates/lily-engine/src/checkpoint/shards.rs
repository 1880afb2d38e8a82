//! All weight files of a model as one table of tensors. Reads headers only.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};
use std::sync::Arc;

use lily_kernels::mapped::MappedFile;
use lily_kernels::tensor::FileSlice;
use serde_json::{Map, Value};

use super::files::ModelFiles;
use super::header::{self, Entry};
use super::{CheckpointError, layout};

/// Says which file holds which tensor, if there are several.
pub const INDEX_FILE: &str = "model.safetensors.index.json";
/// Holds every tensor, if there is no index.
pub const WEIGHT_FILE: &str = "model.safetensors";

/// The text model's tensors by name, and the files that hold them, in the order of their names.
#[derive(Debug, Default)]
pub(super) struct Shards {
    pub(super) files: Vec<Arc<MappedFile>>,
    pub(super) tensors: BTreeMap<String, Entry>,
    /// Tensors left out by name in the files that were opened, and their bytes.
    pub(super) skipped: (usize, u64),
}

impl Shards {
    /// Maps `model.safetensors`, or every file of the index that holds a tensor of the text model.
    pub(super) fn open(folder: &ModelFiles) -> Result<Self, CheckpointError> {
        let Some(json) = folder.read(INDEX_FILE)? else {
            let file = folder.map(WEIGHT_FILE)?.ok_or_else(|| {
                let problem = format!("there is neither {WEIGHT_FILE} nor {INDEX_FILE}");
                CheckpointError::file(&folder.place(), problem)
            })?;
            let mut shards = Self::default();
            shards.add(file)?;
            return Ok(shards);
        };

        let index = folder.path_of(INDEX_FILE);
        let placed = weight_map(&index, &json)?;
        let names: BTreeSet<&String> = placed.values().collect();
        let names: Vec<&String> = names.into_iter().collect();
        let mut shards = Self::default();
        for name in &names {
            let absent = || CheckpointError::file(&index, format!("names {name}, but there is no such file"));
            shards.add(folder.map(name)?.ok_or_else(absent)?)?;
        }
        for (tensor, name) in &placed {
            let holder = shards.tensors.get(tensor).map(|entry| names[entry.slice.file as usize]);
            if holder != Some(name) {
                let problem = format!("places tensor {tensor} in {name}, which does not hold it");
                return Err(CheckpointError::file(&index, problem));
            }
        }
        Ok(shards)
    }

    fn add(&mut self, file: Arc<MappedFile>) -> Result<(), CheckpointError> {
        let number = self.files.len() as u32; // one for each file name of an index in memory
        for entry in header::read(&file, number)? {
            if layout::is_skipped(&entry.name) {
                self.skipped = (self.skipped.0 + 1, self.skipped.1 + entry.slice.bytes);
                continue;
            }
            if let Some(other) = self.tensors.get(&entry.name) {
                let problem = format!("is also in {}", self.files[other.slice.file as usize].name());
                return Err(CheckpointError::tensor(file.name(), &entry.name, problem));
            }
            self.tensors.insert(entry.name.clone(), entry);
        }
        self.files.push(file);
        Ok(())
    }

    /// The bytes of a tensor.
    pub(super) fn bytes(&self, slice: FileSlice) -> &[u8] {
        // `header::read` checked the range against the file's length.
        &self.files[slice.file as usize].bytes()[slice.offset as usize..][..slice.bytes as usize]
    }
}

/// `weight_map` of an index: tensor name → file name, for the tensors of the text model.
fn weight_map(index: &str, json: &[u8]) -> Result<BTreeMap<String, String>, CheckpointError> {
    let refuse = |problem: String| CheckpointError::file(index, problem);
    let root: Map<String, Value> =
        serde_json::from_slice(json).map_err(|reason| refuse(format!("not a valid index: {reason}")))?;
    let map = root
        .get("weight_map")
        .and_then(Value::as_object)
        .ok_or_else(|| refuse("there is no object `weight_map`".to_owned()))?;
    let mut placed = BTreeMap::new();
    for (tensor, file) in map {
        if layout::is_skipped(tensor) {
            continue;
        }
        let file = file.as_str().filter(|file| is_file_name(file)).ok_or_else(|| {
            refuse(format!("`weight_map` places tensor {tensor} in {file}, which is not the name of a file beside it"))
        })?;
        placed.insert(tensor.clone(), file.to_owned());
    }
    if placed.is_empty() {
        return Err(refuse("`weight_map` names no tensor of a text model".to_owned()));
    }
    Ok(placed)
}

/// Names of the weight files that the text of a `model.safetensors.index.json` asks for, ascending: those that hold a
/// tensor of the text model. For someone who has the index and not yet the files.
///
/// # Errors
/// It is no index: one sentence.
pub fn indexed_files(index_json: &[u8]) -> Result<BTreeSet<String>, CheckpointError> {
    Ok(weight_map(INDEX_FILE, index_json)?.into_values().collect())
}

/// A downloaded index must not lead out of its folder.
fn is_file_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    matches!((components.next(), components.next()), (Some(Component::Normal(only)), None) if only == name)
}
