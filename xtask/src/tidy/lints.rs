//! Some rules are clippy's to check. These checks hold clippy to it.

use super::source::{Language, words};
use super::{Finding, Tree};

/// Lints that the workspace denies. `wildcard_enum_match_arm` is what makes a new op a compile error in every `match`.
const DENIED: [&str; 7] = [
    "unsafe_op_in_unsafe_fn",
    "undocumented_unsafe_blocks",
    "unwrap_used",
    "wildcard_enum_match_arm",
    "dbg_macro",
    "todo",
    "unimplemented",
];

pub fn floor(tree: &Tree, findings: &mut Vec<Finding>) {
    let denies = |text: &str, lint: &str| {
        let mut settings = text.lines().filter_map(|line| line.split_once('='));
        settings.any(|(name, level)| name.trim() == lint && matches!(level.trim(), "\"deny\"" | "\"forbid\""))
    };
    for lint in DENIED {
        if !tree.source("Cargo.toml").is_some_and(|source| denies(&source.text, lint)) {
            findings.push(Finding::new("lints", "Cargo.toml", 0, format!("the workspace does not deny {lint}")));
        }
    }
    let manifests = tree.sources.iter().filter(|source| source.path.ends_with("/Cargo.toml"));
    for source in manifests.filter(|source| !source.text.contains("[lints]\nworkspace = true")) {
        findings.push(Finding::new("lints", &source.path, 0, "the crate does not take part in the workspace's lints"));
    }
}

pub fn wildcards(tree: &Tree, findings: &mut Vec<Finding>) {
    for source in tree.below("crates/").filter(|source| source.language == Language::Rust) {
        for at in words(&source.code, "wildcard_enum_match_arm") {
            findings.push(Finding::new("wildcard", &source.path, source.line(at), "wildcard arms hide a missing op"));
        }
    }
}
