//! What the small files of a repository say about the large ones: whether the engine runs such a model, and whether the
//! weight files that it would open are listed. Asked before the large ones are fetched.

use std::fs;

use anyhow::{Context, bail};
use lily_engine::checkpoint::{Declared, INDEX_FILE, WEIGHT_FILE, indexed_files};

use super::hub::RemoteFile;
use super::layout::Layout;

/// The engine's own description of a model.
const CONFIG_FILE: &str = "config.json";

/// Whether the engine learns from this file what the weight files are.
pub fn describes(file: &RemoteFile) -> bool {
    [CONFIG_FILE, INDEX_FILE].contains(&file.name.as_str())
}

/// Reads those of the chosen files that describe, which are here.
///
/// # Errors
/// One sentence: the configuration is of another kind of model, a weight file is missing, a file is unreadable.
pub fn check(layout: &Layout, files: &[RemoteFile]) -> anyhow::Result<()> {
    let listed = |name: &str| files.iter().find(|file| file.name == name);
    if let Some(config) = read(layout, listed(CONFIG_FILE))? {
        let text = String::from_utf8(config).with_context(|| format!("{CONFIG_FILE} is not UTF-8 text"))?;
        Declared::from_config(&text)?;
    }
    let Some(index) = read(layout, listed(INDEX_FILE))? else {
        if listed(WEIGHT_FILE).is_none() {
            bail!("it has neither {WEIGHT_FILE} nor {INDEX_FILE}");
        }
        return Ok(());
    };
    for name in indexed_files(&index)? {
        if listed(&name).is_none() {
            bail!("{INDEX_FILE} names {name:?}, which is not among the weight files of the repository");
        }
    }
    Ok(())
}

fn read(layout: &Layout, file: Option<&RemoteFile>) -> anyhow::Result<Option<Vec<u8>>> {
    let Some(file) = file else { return Ok(None) };
    let path = layout.blob(file.checksum.name());
    fs::read(&path).map(Some).with_context(|| path.display().to_string())
}
