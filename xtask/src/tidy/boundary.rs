//! Who may know what: crate edges, the environment, unsafe code, GPU words, wire types.

use super::source::{Language, Source, words};
use super::waiver::above;
use super::{Finding, Tree};

/// The crates and what each may import of the workspace.
const EDGES: [(&str, &[&str]); 5] = [
    ("lily", &["lily-engine"]),
    ("lily-engine", &["lily-kernels"]),
    // In place of Apple's crates, where there is no Metal.
    ("lily-kernels", &["software-metal"]),
    ("software-metal", &[]),
    ("xtask", &[]),
];

const FLAGS: &str = "crates/lily/src/flags.rs";
const ENGINE: &str = "crates/lily-engine/";
const ENGINE_ROOT: &str = "crates/lily-engine/src/lib.rs";
const KERNELS: &str = "crates/lily-kernels/src/";
const SERVE: &str = "crates/lily/src/serve";

pub fn edges(tree: &Tree, findings: &mut Vec<Finding>) {
    for package in &tree.packages {
        let path = format!("{} (Cargo.toml)", package.name);
        let Some((_, allowed)) = EDGES.iter().find(|(name, _)| *name == package.name) else {
            findings.push(Finding::new("edges", &path, 0, "a crate that the table of edges does not know"));
            continue;
        };
        for dependency in package.dependencies.iter().filter(|dependency| dependency.local) {
            if !allowed.contains(&dependency.name.as_str()) {
                let message = format!("{} may not import {}", package.name, dependency.name);
                findings.push(Finding::new("edges", &path, 0, message));
            }
        }
    }
}

pub fn engine_forbids_unsafe(tree: &Tree, findings: &mut Vec<Finding>) {
    if !tree.source(ENGINE_ROOT).is_some_and(|source| source.code.contains("#![forbid(unsafe_code)]")) {
        findings.push(Finding::new("forbid-unsafe", ENGINE_ROOT, 0, "lacks #![forbid(unsafe_code)]"));
    }
}

pub fn environment(tree: &Tree, findings: &mut Vec<Finding>) {
    const READS: [&str; 6] = ["var", "var_os", "vars", "vars_os", "set_var", "remove_var"];
    for source in rust(tree, "crates/").filter(|source| source.path != FLAGS) {
        for at in words(&source.code, "env") {
            let Some(rest) = source.code[at + 3..].strip_prefix("::") else { continue };
            let names = match rest.strip_prefix('{') {
                Some(group) => group.split('}').next().unwrap_or_default(),
                None => {
                    rest.split(|byte: char| !byte.is_ascii_alphanumeric() && byte != '_').next().unwrap_or_default()
                }
            };
            if READS.iter().any(|read| words(names, read).next().is_some()) {
                findings.push(Finding::new("env", &source.path, source.line(at), "reads the environment"));
            }
        }
        for at in words(&source.code, "getenv") {
            findings.push(Finding::new("env", &source.path, source.line(at), "reads the environment"));
        }
    }
}

pub fn unsafe_code(tree: &Tree, findings: &mut Vec<Finding>) {
    for source in rust(tree, "crates/").chain(rust(tree, "xtask/")) {
        for at in words(&source.code, "unsafe") {
            let line = source.line(at);
            if !may_be_unsafe(&source.path) {
                findings.push(Finding::new("unsafe", &source.path, line, "unsafe code does not belong here"));
            } else if !is_function_type(source, at) && !has_safety_comment(source, line) {
                findings.push(Finding::new("unsafe", &source.path, line, "no SAFETY comment above"));
            }
        }
    }
}

fn may_be_unsafe(path: &str) -> bool {
    let Some(path) = path.strip_prefix(KERNELS) else { return false };
    let device = ["cpu/", "metal/", "cuda/"].iter().any(|device| path.starts_with(device));
    device || path == "mapped.rs" || is_simd(path)
}

/// `ops/<op>/simd.rs` and what is below `ops/<op>/simd/`.
fn is_simd(path: &str) -> bool {
    let inside = path.strip_prefix("ops/").and_then(|path| path.split_once('/'));
    inside.is_some_and(|(_, part)| part == "simd.rs" || part.starts_with("simd/"))
}

/// `unsafe fn(…)` and `unsafe extern "C" fn(…)` as types do nothing yet.
fn is_function_type(source: &Source, at: usize) -> bool {
    let rest = source.code[at + "unsafe".len()..].trim_start();
    let head: String =
        rest.chars().take_while(|byte| *byte != '(' && *byte != '{').filter(|byte| *byte != ' ').collect();
    head.ends_with("fn")
}

/// `SAFETY` (or a `# Safety` section) on the line, right above it, or above the statement of which it is a part.
fn has_safety_comment(source: &Source, line: usize) -> bool {
    const STATEMENT_LINES: usize = 6;
    let comments: Vec<&str> = source.comments.lines().collect();
    let code: Vec<&str> = source.code.lines().collect();
    let says = |line: usize| comments[line - 1].contains("SAFETY:") || comments[line - 1].contains("# Safety");
    let mut start = line;
    for _ in 0..STATEMENT_LINES {
        if says(start) || above(source, start).any(says) {
            return true;
        }
        let ended = |line: usize| code[line - 1].trim_end().ends_with([';', '}']) || code[line - 1].trim().is_empty();
        if start == 1 || ended(start - 1) {
            break;
        }
        start -= 1;
    }
    false
}

pub fn gpu_words(tree: &Tree, findings: &mut Vec<Finding>) {
    const WORDS: [&str; 5] = ["metal", "cuda", "threadgroup", "simdgroup", "warp"];
    for source in rust(tree, ENGINE) {
        for (index, line) in source.text.lines().enumerate() {
            let line = line.to_lowercase();
            for word in WORDS.iter().filter(|word| line.contains(**word)) {
                findings.push(Finding::new("gpu-words", &source.path, index + 1, format!("speaks of {word}")));
            }
        }
    }
}

/// Below the binary nothing is serialized for a caller, and the names of OpenAI's objects occur in `serve/` only.
pub fn wire_types(tree: &Tree, findings: &mut Vec<Finding>) {
    let below_binary = ["crates/lily-engine/src/", KERNELS];
    for source in below_binary.iter().flat_map(|folder| rust(tree, folder)) {
        for at in words(&source.code, "Serialize") {
            findings.push(Finding::new("wire-types", &source.path, source.line(at), "serializes below the binary"));
        }
    }
    for source in
        rust(tree, "crates/").filter(|source| source.path.contains("/src/") && !source.path.starts_with(SERVE))
    {
        for (at, name) in source.text.match_indices("chat.completion") {
            if source.comments[at..at + name.len()].trim().is_empty() {
                let message = "an OpenAI object outside serve/";
                findings.push(Finding::new("wire-types", &source.path, source.line(at), message));
            }
        }
    }
}

fn rust<'a>(tree: &'a Tree, folder: &'a str) -> impl Iterator<Item = &'a Source> {
    tree.below(folder).filter(|source| source.language == Language::Rust)
}
