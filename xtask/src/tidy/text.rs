//! Words that no file of the repository should hold.

use super::source::{Language, words};
use super::{Finding, Tree};

pub fn unfinished(tree: &Tree, findings: &mut Vec<Finding>) {
    for source in tree.sources.iter().filter(|source| source.language == Language::Rust) {
        let mut found = |at: usize, what: &str| {
            let message = format!("{what} without a reason");
            findings.push(Finding::new("unfinished", &source.path, source.line(at), message));
        };
        for name in ["todo", "unimplemented"] {
            let calls = words(&source.code, name).filter(|at| source.code[at + name.len()..].starts_with('!'));
            calls.for_each(|at| found(at, name));
        }
        let bare = |at: &usize| source.code[at + "#[ignore".len()..].trim_start().starts_with(']');
        source.code.match_indices("#[ignore").map(|(at, _)| at).filter(bare).for_each(|at| found(at, "ignore"));
    }
}

/// Spelled in two halves, so that this file passes its own check.
const PRIVATE: [&str; 3] = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/tm", "p/wt")];
const REGISTRIES: [&str; 6] = [
    concat!("index.", "crates.io"),
    concat!("static.", "crates.io"),
    concat!("crates.io", "-index"),
    concat!("pypi", ".org"),
    concat!("files.pythonhosted", ".org"),
    concat!("registry.npmjs", ".org"),
];

/// An absolute path: the same letters inside a longer path are no finding.
pub fn private_paths(tree: &Tree, findings: &mut Vec<Finding>) {
    let absolute = |before: &str| !before.ends_with(|last: char| last.is_alphanumeric() || ".-_/~)}".contains(last));
    search(tree, "private-path", &PRIVATE, absolute, findings);
}

pub fn registries(tree: &Tree, findings: &mut Vec<Finding>) {
    search(tree, "registry", &REGISTRIES, |_| true, findings);
}

/// Reports each line with one of the texts, if what stands before it on the line is `fitting`.
fn search(
    tree: &Tree,
    check: &'static str,
    texts: &[&str],
    fitting: impl Fn(&str) -> bool,
    findings: &mut Vec<Finding>,
) {
    for source in tree.sources.iter().filter(|source| !source.path.ends_with("Cargo.lock")) {
        for (index, line) in source.text.lines().enumerate() {
            for text in texts {
                if line.match_indices(text).any(|(at, _)| fitting(&line[..at])) {
                    findings.push(Finding::new(check, &source.path, index + 1, format!("speaks of {text}")));
                }
            }
        }
    }
}
