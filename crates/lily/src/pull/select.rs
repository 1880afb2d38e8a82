//! Which files of a repository are fetched: those that the engine reads, and small text that other tools expect.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use anyhow::bail;

use super::hub::RemoteFile;
use crate::terminal::progress::human_bytes;

/// Text is small; a `.json` or `.txt` beyond this is data.
const LONGEST_TEXT: u64 = 64 << 20;

/// What is fetched and what is not.
#[derive(Debug)]
pub struct Choice {
    /// In the order of the repository's list.
    pub files: Vec<RemoteFile>,
    skipped: Vec<String>,
}

/// Splits the list.
///
/// # Errors
/// A name leads out of the folder or stands for two things, or the repository holds no model that the engine could open.
pub fn choose(files: Vec<RemoteFile>, repo: &str) -> anyhow::Result<Choice> {
    if let Some(file) = files.iter().find(|file| leads_out(&file.name)) {
        bail!("{repo}: the Hub lists a file {:?}, which leads out of the folder; nothing was downloaded", file.name);
    }
    let files = distinct(files, repo)?;
    let (files, skipped): (Vec<_>, Vec<_>) = files.into_iter().partition(is_needed);
    let has = |wanted: &dyn Fn(&str) -> bool| files.iter().any(|file| wanted(&file.name));
    for (there, what) in [
        (has(&|name| name == "config.json"), "config.json"),
        (has(&|name| name == "tokenizer.json"), "tokenizer.json"),
        (has(&|name| name.ends_with(".safetensors")), "*.safetensors"),
    ] {
        if !there {
            bail!("{repo} holds no model that Lily reads: it has no {what}; nothing was downloaded");
        }
    }
    Ok(Choice { files, skipped: skipped.into_iter().map(|file| file.name).collect() })
}

/// The files, each of them once.
///
/// # Errors
/// A name stands for two files, or for a file and a folder.
fn distinct(files: Vec<RemoteFile>, repo: &str) -> anyhow::Result<Vec<RemoteFile>> {
    let mut known = BTreeMap::new();
    let mut once: Vec<RemoteFile> = Vec::with_capacity(files.len());
    for file in files {
        match known.entry(file.name.clone()) {
            Entry::Vacant(place) => {
                place.insert(once.len());
                once.push(file);
            }
            Entry::Occupied(place) if once[*place.get()] == file => {}
            Entry::Occupied(_) => {
                bail!("{repo}: the Hub lists two files by the name {:?}; nothing was downloaded", file.name);
            }
        }
    }
    for file in &once {
        let mut folders = file.name.match_indices('/').map(|(end, _)| &file.name[..end]);
        if let Some(folder) = folders.find(|folder| known.contains_key(*folder)) {
            bail!(
                "{repo}: the Hub lists {folder:?} as a file and as the folder of {:?}; nothing was downloaded",
                file.name
            );
        }
    }
    Ok(once)
}

impl Choice {
    /// # Errors
    /// A name is longer than the `longest` that the disk takes, in bytes.
    pub fn check_names(&self, longest: u64) -> anyhow::Result<()> {
        match self.files.iter().find(|file| file.name.len() as u64 > longest) {
            None => Ok(()),
            Some(RemoteFile { name, .. }) => {
                let start: String = name.chars().take(40).collect();
                let length = name.len();
                bail!(
                    "the name {:?} has {length} bytes, and the disk takes {longest}; nothing was downloaded",
                    start + "…"
                )
            }
        }
    }

    /// Size of all files together, in words.
    pub fn total(&self) -> String {
        human_bytes(self.files.iter().map(|file| file.size).sum())
    }

    /// What is left out, if anything is.
    pub fn skipped_line(&self) -> Option<String> {
        let shown = self.skipped.iter().take(5).map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
        let more = if self.skipped.len() > 5 { ", …" } else { "" };
        let count = self.skipped.len();
        (count > 0).then(|| format!("left out what the engine does not read ({count}): {shown}{more}"))
    }
}

/// The engine's folders are flat, so what lies in a subfolder is not for it.
fn is_needed(file: &RemoteFile) -> bool {
    let name = file.name.as_str();
    if name.contains('/') || name.starts_with('.') {
        return false;
    }
    let ends = |endings: &[&str]| endings.iter().any(|ending| name.ends_with(ending));
    let text =
        ends(&[".json", ".jinja", ".txt"]) || ["README", "LICENSE", "NOTICE"].iter().any(|word| name.starts_with(word));
    ends(&[".safetensors"]) || (text && file.size <= LONGEST_TEXT)
}

/// Whether the name, put behind a folder, is outside it or hides what it is.
fn leads_out(name: &str) -> bool {
    name.split('/').any(|part| matches!(part, "" | "." | "..")) || name.contains(['\\', '\0'])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pull::hub::Checksum;

    fn file(name: &str, size: u64) -> RemoteFile {
        RemoteFile { name: name.into(), size, checksum: Checksum::GitBlob("0".repeat(40)) }
    }

    fn model(more: &[&str]) -> Vec<RemoteFile> {
        let names = ["config.json", "tokenizer.json", "model-00001-of-00002.safetensors"];
        names.iter().chain(more).map(|name| file(name, 9)).collect()
    }

    #[test]
    fn the_engines_files_and_small_text_are_chosen() {
        let more = ["model.safetensors.index.json", "generation_config.json", "tokenizer_config.json", "vocab.json"];
        let text = ["merges.txt", "chat_template.jinja", "README.md", "LICENSE", "NOTICE"];
        let rest = [".gitattributes", "m.gguf", "a.png", "onnx/model.json", "model.bin", "x.py"];
        let mut files = model(&[&more[..], &text, &rest].concat());
        files.push(file("dataset.json", LONGEST_TEXT + 1));
        let choice = choose(files, "o/n").unwrap();
        assert_eq!(choice.files.len(), 3 + more.len() + text.len());
        assert_eq!(choice.skipped.len(), rest.len() + 1);
        let line = choice.skipped_line().unwrap();
        assert!(line.contains("(7)") && line.contains("\"m.gguf\"") && line.ends_with('…'), "{line}");
        assert_eq!(choose(model(&[]), "o/n").unwrap().skipped_line(), None);
    }

    #[test]
    fn names_that_lead_out_stop_everything() {
        for name in ["../config.json", "/etc/passwd", "a/../../b.json", "a//b", "..\\x.json", "./x", ".."] {
            let error = choose(model(&[name]), "o/n").unwrap_err().to_string();
            assert!(error.contains("leads out of the folder"), "{name}: {error}");
        }
    }

    #[test]
    fn a_name_stands_for_one_file() {
        let mut files = model(&["a.json", "a.json"]);
        assert_eq!(choose(files.clone(), "o/n").unwrap().files.len(), 4, "twice the same is the same");
        files[4].size += 1;
        let error = choose(files, "o/n").unwrap_err().to_string();
        assert_eq!(error, "o/n: the Hub lists two files by the name \"a.json\"; nothing was downloaded");
        for names in [["a", "a/b"], ["a/b/c", "a"], ["x/a/b", "x/a"]] {
            let error = choose(model(&names), "o/n").unwrap_err().to_string();
            assert!(error.contains("as a file and as the folder of"), "{error}");
        }
        assert!(choose(model(&["a/b", "a/c", "ab"]), "o/n").is_ok());
    }

    #[test]
    fn names_must_fit_the_disk() {
        let (fits, long) = ("é".repeat(125) + ".json", "é".repeat(126) + ".json");
        let check = |name: &str| choose(model(&[name]), "o/n").unwrap().check_names(255);
        assert!(check(&fits).is_ok());
        let error = check(&long).unwrap_err().to_string();
        assert!(error.contains("ééé…\" has 257 bytes, and the disk takes 255") && error.len() < 200, "{error}");
        assert!(check(&"x".repeat(300)).is_ok(), "it is not fetched");
    }

    #[test]
    fn a_repository_without_a_model_is_refused() {
        for (gone, what) in [(0, "config.json"), (1, "tokenizer.json"), (2, "*.safetensors")] {
            let mut files = model(&["m.gguf"]);
            files.remove(gone);
            assert!(choose(files, "o/n").unwrap_err().to_string().contains(&format!("it has no {what}")));
        }
    }
}
