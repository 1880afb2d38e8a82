//! `cargo xtask tidy`: the rules that the compiler and clippy do not know, as one table of checks.
//! A check is a function over the files of the repository. `samples.rs` proves that each one bites.
//!
//! A rule can be waived in place by a comment that gives the reason, `// tidy: allow(CHECK): REASON`, on the line itself,
//! in the comments and attributes right above it, or in the first lines of the file for a finding about the whole file.
//! A waiver without reason, of an unknown check, or with nothing to waive is itself a finding.

mod boundary;
mod layout;
mod lints;
mod records;
#[cfg(test)]
mod samples;
mod size;
mod source;
mod text;
mod waiver;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::shell;
use source::Source;

/// One rule.
struct Check {
    /// As written in a waiver.
    name: &'static str,
    rule: &'static str,
    run: fn(&Tree, &mut Vec<Finding>),
}

const fn check(name: &'static str, rule: &'static str, run: fn(&Tree, &mut Vec<Finding>)) -> Check {
    Check { name, rule, run }
}

static CHECKS: &[Check] = &[
    check("function-length", "a function has at most 70 lines", size::functions),
    check("file-length", "a source file has at most 600 lines, model/qwen3_5.rs 500", size::files),
    check("env", "the environment is read in crates/lily/src/flags.rs only", boundary::environment),
    check("edges", "lily imports lily-engine only, lily-engine lily-kernels, lily-kernels neither", boundary::edges),
    check("forbid-unsafe", "lily-engine forbids unsafe code", boundary::engine_forbids_unsafe),
    check(
        "unsafe",
        "unsafe is in lily-kernels' cpu/ metal/ cuda/ mapped.rs simd.rs simd/ only, with SAFETY",
        boundary::unsafe_code,
    ),
    check("gpu-words", "lily-engine names no GPU", boundary::gpu_words),
    check("wire-types", "wire types live in crates/lily/src/serve only", boundary::wire_types),
    check("op-folder", "an op has mod.rs, reference.rs and cases.rs", layout::op_folders),
    check("module-name", "no module is called utils, common, misc or helpers", layout::module_names),
    check("lints", "the workspace denies what tidy leaves to clippy, and every crate takes part", lints::floor),
    check("wildcard", "no lint of wildcard match arms is switched off", lints::wildcards),
    check("unfinished", "no todo!, unimplemented! or #[ignore] without a reason", text::unfinished),
    check("private-path", "no file speaks of one machine's folders", text::private_paths),
    check("registry", "no registry host outside Cargo.lock", text::registries),
    check("decisions", "every direct dependency has a dated line in DECISIONS.md", records::decisions),
    check("perf-log", "every row of perf/log.jsonl parses and is complete", records::perf_log),
];

/// Something that breaks a rule.
#[derive(Debug)]
struct Finding {
    check: &'static str,
    path: String,
    /// 1-based; 0 for the whole file.
    line: usize,
    message: String,
}

impl Finding {
    fn new(check: &'static str, path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { check, path: path.to_owned(), line, message: message.into() }
    }
}

/// A crate of the workspace and what it depends on directly, dev- and build-dependencies included.
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

struct Dependency {
    name: String,
    /// A crate of this workspace.
    local: bool,
}

/// What checks look at.
struct Tree {
    sources: Vec<Source>,
    packages: Vec<Package>,
}

impl Tree {
    fn read(root: &Path) -> Result<Self> {
        let mut sources = Vec::new();
        for path in files(root)? {
            let bytes = fs::read(root.join(&path)).with_context(|| path.clone())?;
            if let Ok(text) = String::from_utf8(bytes) {
                sources.push(Source::new(&path, &text));
            }
        }
        let metadata = ["metadata", "--no-deps", "--offline", "--format-version", "1"];
        let metadata = serde_json::from_slice(&shell::output(root, "cargo", &metadata)?)?;
        Ok(Self { sources, packages: packages(&metadata) })
    }

    fn source(&self, path: &str) -> Option<&Source> {
        self.sources.iter().find(|source| source.path == path)
    }

    /// All sources whose path starts so.
    fn below<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a Source> {
        self.sources.iter().filter(move |source| source.path.starts_with(prefix))
    }

    /// Runs the checks, takes away what is waived, sorts by place.
    fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for check in CHECKS {
            (check.run)(self, &mut findings);
        }
        let mut findings = waiver::apply(self, findings);
        findings.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
        findings
    }
}

/// Prints the findings; `true` if there are none.
///
/// # Errors
/// The files or the workspace cannot be read.
pub fn report(root: &Path) -> Result<bool> {
    let tree = Tree::read(root)?;
    let findings = tree.findings();
    for Finding { check, path, line, message } in &findings {
        let place = if *line > 0 { format!("{path}:{line}") } else { path.clone() };
        println!("{place}: {message} [{check}]");
    }
    println!("tidy: {} checks, {} files, {} findings", CHECKS.len(), tree.sources.len(), findings.len());
    Ok(findings.is_empty())
}

/// Prints the rules.
pub fn list() {
    for check in CHECKS {
        println!("{:<16} {}", check.name, check.rule);
    }
}

/// Paths of all files that belong to the repository, relative, sorted: what git knows or would add; without git (an
/// unpacked archive) everything but `target`.
///
/// # Errors
/// A folder cannot be read.
pub fn files(root: &Path) -> Result<Vec<String>> {
    let listed = shell::output(root, "git", &["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let mut files: Vec<String> = match listed {
        Ok(bytes) => String::from_utf8_lossy(&bytes).split_terminator('\0').map(str::to_owned).collect(),
        Err(_) => walk(root)?,
    };
    files.retain(|path| root.join(path).is_file()); // git still lists what was deleted but not committed
    files.sort();
    files.dedup();
    Ok(files)
}

fn walk(root: &Path) -> Result<Vec<String>> {
    let mut files = Vec::new();
    let mut pending = vec![String::new()];
    while let Some(prefix) = pending.pop() {
        for entry in fs::read_dir(root.join(&prefix)).with_context(|| prefix.clone())? {
            let entry = entry?;
            let path = format!("{prefix}{}", entry.file_name().to_string_lossy());
            if !entry.file_type()?.is_dir() {
                files.push(path);
            } else if path != "target" && path != ".git" {
                pending.push(format!("{path}/"));
            }
        }
    }
    Ok(files)
}

/// The part of `cargo metadata` that checks need.
fn packages(metadata: &Value) -> Vec<Package> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let name = |value: &Value| value["name"].as_str().unwrap_or_default().to_owned();
    let dependency = |value: &Value| Dependency { name: name(value), local: value["path"].is_string() };
    let package = |value: &Value| Package {
        name: name(value),
        dependencies: list(&value["dependencies"]).iter().map(dependency).collect(),
    };
    list(&metadata["packages"]).iter().map(package).collect()
}
