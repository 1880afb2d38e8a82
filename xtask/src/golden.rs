//! `cargo xtask golden`: every file below `golden/` is named in its folder's `README.md` (where it comes from) and
//! pinned in its `SHA256SUMS` (which bytes), in the format of `sha256sum`. Never makes a golden: see `tools/oracle`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

const ORIGINS: &str = "README.md";
const SUMS: &str = "SHA256SUMS";

/// Prints what is wrong with the goldens; `true` if nothing is.
///
/// # Errors
/// A file cannot be read.
pub fn report(root: &Path) -> Result<bool> {
    let problems = check(&root.join("golden"))?;
    problems.iter().for_each(|problem| println!("{problem}"));
    println!("golden: {}", if problems.is_empty() { "every file is listed and unchanged" } else { "not in order" });
    Ok(problems.is_empty())
}

/// Writes each folder's `SHA256SUMS` anew, then checks: origins are written by hand.
///
/// # Errors
/// A file cannot be read or written.
pub fn write(root: &Path) -> Result<bool> {
    for folder in folders(&root.join("golden"))? {
        let mut text = String::new();
        for name in files(&folder)? {
            writeln!(text, "{}  {name}", hash(&folder.join(&name))?)?;
        }
        fs::write(folder.join(SUMS), text)?;
    }
    report(root)
}

/// One sentence for each file that is missing, unlisted, changed or without an origin.
fn check(golden: &Path) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for folder in folders(golden)? {
        let origins = fs::read_to_string(folder.join(ORIGINS)).unwrap_or_default();
        let mut pinned = sums(&fs::read_to_string(folder.join(SUMS)).unwrap_or_default());
        for name in files(&folder)? {
            let path = folder.join(&name);
            let mut problem = |what: &str| problems.push(format!("{}: {what}", path.display()));
            if !origins.contains(&format!("`{name}`")) {
                problem("no origin: its folder's README.md does not name it");
            }
            match pinned.remove(&name) {
                None => problem("no hash: run `cargo xtask golden --write`"),
                Some(sum) if sum != hash(&path)? => problem("its bytes are not those of SHA256SUMS"),
                Some(_) => {}
            }
        }
        problems.extend(pinned.keys().map(|name| format!("{}: listed but absent", folder.join(name).display())));
    }
    Ok(problems)
}

/// `name → hash` of a `sha256sum` listing.
fn sums(text: &str) -> BTreeMap<String, String> {
    text.lines().filter_map(|line| line.split_once("  ")).map(|(sum, name)| (name.to_owned(), sum.to_owned())).collect()
}

/// The folders directly below `golden/`. Each owns everything below itself.
fn folders(golden: &Path) -> Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    for entry in fs::read_dir(golden).with_context(|| golden.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            folders.push(path);
        }
    }
    folders.sort();
    Ok(folders)
}

/// Files of a folder and its subfolders, as sorted relative names with `/`, without the two lists themselves.
fn files(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    let mut pending = vec![(folder.to_owned(), String::new())];
    while let Some((path, prefix)) = pending.pop() {
        for entry in fs::read_dir(&path).with_context(|| path.display().to_string())? {
            let entry = entry?;
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            if entry.path().is_dir() {
                pending.push((entry.path(), format!("{name}/")));
            } else if name != ORIGINS && name != SUMS {
                names.push(name);
            }
        }
    }
    names.sort();
    Ok(names)
}

fn hash(path: &Path) -> Result<String> {
    let bytes = fs::read(path).with_context(|| path.display().to_string())?;
    Ok(Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    /// A golden folder of its own with one empty file `a.json`.
    fn sample(name: &str, readme: &str, listing: &str) -> Vec<String> {
        let golden = std::env::temp_dir().join(format!("xtask-golden-{}-{name}", std::process::id()));
        let folder = golden.join("demo");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("a.json"), "").unwrap();
        fs::write(folder.join(ORIGINS), readme).unwrap();
        fs::write(folder.join(SUMS), listing).unwrap();
        let problems = check(&golden).unwrap();
        fs::remove_dir_all(&golden).unwrap();
        problems
    }

    #[test]
    fn a_listed_and_unchanged_file_is_in_order() {
        assert!(sample("good", "`a.json`: by hand", &format!("{EMPTY}  a.json\n")).is_empty());
    }

    #[test]
    fn each_fault_is_found() {
        let faults = [
            ("origin", "", format!("{EMPTY}  a.json\n"), "no origin"),
            ("hash", "`a.json`", String::new(), "no hash"),
            ("changed", "`a.json`", format!("{}  a.json\n", EMPTY.replace('e', "f")), "its bytes"),
            ("absent", "`a.json`", format!("{EMPTY}  a.json\n{EMPTY}  b.json\n"), "absent"),
        ];
        for (name, readme, listing, expected) in faults {
            let problems = sample(name, readme, &listing);
            assert!(problems.len() == 1 && problems[0].contains(expected), "{name}: {problems:?}");
        }
    }
}
