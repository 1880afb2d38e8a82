//! `tidy: allow(CHECK): REASON` comments: what they waive, and that each is sound and needed.

use std::collections::HashSet;

use super::source::Source;
use super::{CHECKS, Finding, Tree};

const MARK: &str = "tidy: allow(";
/// A waiver for a whole file stands in its first lines.
const HEAD_LINES: usize = 12;

struct Waiver {
    line: usize,
    check: String,
    reason: String,
}

/// Drops waived findings; adds one for each waiver that is malformed or waives nothing.
pub fn apply(tree: &Tree, findings: Vec<Finding>) -> Vec<Finding> {
    let waivers: Vec<(&Source, Vec<Waiver>)> = tree.sources.iter().map(|source| (source, read(source))).collect();
    let mut used = HashSet::new();
    let mut kept: Vec<Finding> = findings
        .into_iter()
        .filter(|finding| {
            let of_file = waivers.iter().find(|(source, _)| source.path == finding.path);
            let waiver =
                of_file.and_then(|(source, waivers)| waivers.iter().find(|waiver| covers(source, waiver, finding)));
            if let Some(waiver) = waiver {
                used.insert((finding.path.clone(), waiver.line));
            }
            waiver.is_none()
        })
        .collect();
    for (source, waivers) in &waivers {
        for waiver in waivers {
            let fault = if !CHECKS.iter().any(|check| check.name == waiver.check) {
                format!("there is no check {}", waiver.check)
            } else if waiver.reason.is_empty() {
                "a waiver gives its reason".to_owned()
            } else if !used.contains(&(source.path.clone(), waiver.line)) {
                "this waives nothing".to_owned()
            } else {
                continue;
            };
            kept.push(Finding::new("waiver", &source.path, waiver.line, fault));
        }
    }
    kept
}

/// The waivers of a file. Doc comments only talk about them.
fn read(source: &Source) -> Vec<Waiver> {
    let mut waivers = Vec::new();
    for (index, comment) in source.comments.lines().enumerate() {
        let comment = comment.trim();
        let Some((front, rest)) = comment.split_once(MARK) else { continue };
        if front.trim_start_matches(['/', '#', '*', ' ']).is_empty() && !is_doc(comment) {
            let (check, reason) = rest.split_once(')').unwrap_or((rest, ""));
            let reason = reason.trim_start_matches(':').trim();
            waivers.push(Waiver { line: index + 1, check: check.to_owned(), reason: reason.to_owned() });
        }
    }
    waivers
}

fn is_doc(comment: &str) -> bool {
    comment.starts_with("///") || comment.starts_with("//!")
}

fn covers(source: &Source, waiver: &Waiver, finding: &Finding) -> bool {
    if waiver.check != finding.check || waiver.reason.is_empty() {
        return false;
    }
    if finding.line == 0 {
        return waiver.line <= HEAD_LINES;
    }
    waiver.line == finding.line || (waiver.line < finding.line && above(source, finding.line).contains(&waiver.line))
}

/// Lines of the comments and attributes that stand right above a line.
pub fn above(source: &Source, line: usize) -> std::ops::Range<usize> {
    let code: Vec<&str> = source.code.lines().collect();
    let comments: Vec<&str> = source.comments.lines().collect();
    let belongs = |index: usize| {
        let code = code[index].trim();
        code.starts_with("#[") || (code.is_empty() && !comments[index].trim().is_empty())
    };
    let mut first = line;
    while first > 1 && belongs(first - 2) {
        first -= 1;
    }
    first..line
}
