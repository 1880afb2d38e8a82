//! Where files are and what they are called.

use std::collections::BTreeSet;

use super::source::{Language, words};
use super::{Finding, Tree};

const OPS: &str = "crates/lily-kernels/src/ops/";

pub fn op_folders(tree: &Tree, findings: &mut Vec<Finding>) {
    let inside = |path: &str| path.strip_prefix(OPS)?.split_once('/').map(|(op, _)| op.to_owned());
    let ops: BTreeSet<String> = tree.sources.iter().filter_map(|source| inside(&source.path)).collect();
    for op in ops {
        for part in ["mod.rs", "reference.rs", "cases.rs"] {
            let path = format!("{OPS}{op}/{part}");
            if tree.source(&path).is_none() {
                findings.push(Finding::new("op-folder", &path, 0, format!("the op {op} has no {part}")));
            }
        }
    }
}

pub fn module_names(tree: &Tree, findings: &mut Vec<Finding>) {
    const EMPTY: [&str; 6] = ["util", "utils", "common", "misc", "helper", "helpers"];
    for source in tree.sources.iter().filter(|source| source.language != Language::Text) {
        let mut parts = source.path.split('/').map(|part| part.split('.').next().unwrap_or_default());
        if let Some(name) = parts.find(|part| EMPTY.contains(part)) {
            findings.push(Finding::new("module-name", &source.path, 0, format!("{name} says nothing")));
        }
        for at in words(&source.code, "mod").filter(|_| source.language == Language::Rust) {
            let name = source.code[at + 3..].trim_start();
            let name = name.split(|byte: char| !byte.is_ascii_alphanumeric() && byte != '_').next().unwrap_or_default();
            if EMPTY.contains(&name) {
                let message = format!("{name} says nothing");
                findings.push(Finding::new("module-name", &source.path, source.line(at), message));
            }
        }
    }
}
