//! Written records: why each dependency is there, and what was measured.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Finding, Tree};

const DECISIONS: &str = "DECISIONS.md";
const PERF_LOG: &str = "perf/log.jsonl";

/// A line counts if it has a date and the dependency's name as code.
pub fn decisions(tree: &Tree, findings: &mut Vec<Finding>) {
    let text = tree.source(DECISIONS).map_or("", |source| &source.text);
    let dated: Vec<&str> = text.lines().filter(|line| line.split([' ', '*', '|', ':']).any(is_date)).collect();
    let direct = tree.packages.iter().flat_map(|package| &package.dependencies).filter(|dependency| !dependency.local);
    let names: BTreeSet<&str> = direct.map(|dependency| dependency.name.as_str()).collect();
    for name in names {
        if !dated.iter().any(|line| line.contains(&format!("`{name}`"))) {
            findings.push(Finding::new("decisions", DECISIONS, 0, format!("no dated line on `{name}`")));
        }
    }
}

fn is_date(word: &str) -> bool {
    let shape = |byte: u8| if byte.is_ascii_digit() { b'0' } else { byte };
    word.bytes().map(shape).eq(*b"0000-00-00")
}

pub fn perf_log(tree: &Tree, findings: &mut Vec<Finding>) {
    let Some(source) = tree.source(PERF_LOG) else {
        findings.push(Finding::new("perf-log", PERF_LOG, 0, "absent"));
        return;
    };
    for (index, line) in source.text.lines().enumerate() {
        if let Some(fault) = row_fault(line) {
            findings.push(Finding::new("perf-log", PERF_LOG, index + 1, fault));
        }
    }
}

/// What is wrong with a row: `load` says what else the machine was doing, in words or as a number.
fn row_fault(line: &str) -> Option<String> {
    let row: Value = match serde_json::from_str(line) {
        Ok(row) => row,
        Err(error) => return Some(format!("does not parse: {error}")),
    };
    for field in ["commit", "date", "machine", "command", "what", "unit"] {
        if row[field].as_str().is_none_or(str::is_empty) {
            return Some(format!("{field} is not a text"));
        }
    }
    if !row["value"].is_number() {
        return Some("value is not a number".into());
    }
    if row["load"].is_null() {
        return Some("load is absent".into());
    }
    let day = row["date"].as_str().and_then(|date| date.get(..10)).unwrap_or_default();
    (!is_date(day)).then(|| "date does not begin with YYYY-MM-DD".into())
}
