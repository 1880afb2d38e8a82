//! Models in a Hugging Face hub cache: `models--{owner}--{name}/{refs/main, snapshots/{revision}/...}`.

use std::fs;
use std::path::{Path, PathBuf};

use super::files::ModelFiles;
use super::shards::Shards;

/// Files without which no model runs.
const REQUIRED: [&str; 2] = ["config.json", "tokenizer.json"];

/// Folder of the snapshot that `refs/main` of a repository (`owner/name`) names in a hub cache, if it is complete: all
/// weight files that the index names are there, each as long as its own header says, and so are the config and the
/// tokenizer. An interrupted download is `None`.
pub fn cached_model(hub_dir: &Path, repo: &str) -> Option<PathBuf> {
    let (owner, name) = repo.split_once('/')?;
    if !is_plain(owner) || !is_plain(name) {
        return None;
    }
    let repository = hub_dir.join(format!("models--{owner}--{name}"));
    let revision = fs::read_to_string(repository.join("refs").join("main")).ok()?;
    let revision = revision.trim();
    if !is_plain(revision) {
        return None;
    }
    let snapshot = repository.join("snapshots").join(revision);
    let complete = REQUIRED.iter().all(|name| snapshot.join(name).is_file())
        && Shards::open(&ModelFiles::Folder(snapshot.clone())).is_ok();
    complete.then_some(snapshot)
}

/// `owner/name` if the folder is a snapshot in a hub cache.
pub(super) fn repository_of(folder: &Path) -> Option<String> {
    let snapshots = folder.parent()?;
    if snapshots.file_name()? != "snapshots" {
        return None;
    }
    let repository = snapshots.parent()?.file_name()?.to_str()?;
    let (owner, name) = repository.strip_prefix("models--")?.split_once("--")?;
    Some(format!("{owner}/{name}"))
}

/// A single path component that stays where it is put.
fn is_plain(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty() && !name.starts_with('.') && name.chars().all(allowed)
}
