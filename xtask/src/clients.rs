//! The step `clients`: the official clients of the APIs that `lily serve` speaks, at the versions of
//! `tools/clients/requirements.txt`, against a started server. They live in a virtual environment below `target/`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::report::Digest;
use crate::shell;
use crate::steps::{FEATURES, Outcome};

const FOLDER: &str = "tools/clients";
const VENV: &str = "target/clients/venv";

/// Installs what is missing, builds the program and runs the checks.
pub fn run(root: &Path, digest: &mut Digest) -> Result<Outcome> {
    if let Err(reason) = install(root)? {
        println!("SKIP clients: {reason}");
        return Ok(Outcome::Skipped(reason));
    }
    // As the step `test` builds it, so that nothing is compiled twice.
    let build = ["test", "--workspace", "--features", FEATURES, "--release", "--locked", "--no-run", "--quiet"];
    if !shell::stream(root, "cargo", &build)? {
        return Ok(Outcome::Failed("the program does not build".into()));
    }
    let mut counts = Counts::default();
    let python = root.join(VENV).join("bin/python").display().to_string();
    let pytest = ["-m", "pytest", "-q", "-rs", "--color=no", "--tb=short", "-p", "no:cacheprovider", FOLDER];
    let ok = shell::run(root, &python, &pytest, |line| {
        println!("{line}");
        counts.line(line);
    })?;
    digest.passed += counts.passed;
    digest.failed += counts.failed;
    digest.ignored += counts.skipped;
    digest.reasons.extend(counts.reasons.iter().cloned());
    digest.failures.extend(counts.failures.iter().cloned());
    let note = format!("{} passed, {} failed, {} skipped", counts.passed, counts.failed, counts.skipped);
    Ok(match (ok, counts.failed, counts.passed) {
        (true, 0, 1..) => Outcome::Passed(note),
        (_, 0, _) => Outcome::Failed(format!("{note}; pytest did not run to its end")),
        (_, _, _) => Outcome::Failed(note),
    })
}

/// Makes the virtual environment anew when the list of versions has changed; the inner error says why it cannot be made.
fn install(root: &Path) -> Result<Result<(), String>> {
    let (venv, list) = (root.join(VENV), root.join(FOLDER).join("requirements.txt"));
    let wanted = fs::read_to_string(&list).with_context(|| list.display().to_string())?;
    let stamp = venv.join("installed.txt");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(Ok(()));
    }
    if !shell::works("python3", &["-c", "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))"]) {
        return Ok(Err("there is no Python 3.10 or later with its module venv (python3-venv)".into()));
    }
    println!("installing the clients into {VENV}");
    let (venv, list) = (venv.display().to_string(), list.display().to_string());
    if !shell::stream(root, "python3", &["-m", "venv", "--clear", &venv])? {
        return Ok(Err("the virtual environment could not be made".into()));
    }
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement", &list];
    if !shell::stream(root, &format!("{venv}/bin/python"), &pip)? {
        return Ok(Err("pip could not install the clients".into()));
    }
    fs::write(&stamp, wanted).with_context(|| stamp.display().to_string())?;
    Ok(Ok(()))
}

/// What pytest counted.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    passed: usize,
    failed: usize,
    skipped: usize,
    failures: Vec<String>,
    reasons: Vec<String>,
}

impl Counts {
    /// Takes one line of its output: `FAILED file::test - why`, `SKIPPED [1] file:1: why`, or the last one,
    /// `1 failed, 21 passed, 25 skipped in 4.04s`.
    fn line(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("FAILED ").or_else(|| line.strip_prefix("ERROR ")) {
            self.failures.push(format!("clients {}", name.split(" - ").next().unwrap_or(name)));
        } else if let Some(reason) = line.strip_prefix("SKIPPED ") {
            self.reasons.push(format!("SKIP clients: {reason}"));
        } else if let Some((counts, _)) = line.rsplit_once(" in ").filter(|(_, time)| is_time(time)) {
            for part in counts.trim_matches(['=', ' ']).split(", ") {
                let Some((count, what)) = part.split_once(' ') else { continue };
                let Ok(count) = count.parse::<usize>() else { continue };
                match what {
                    "passed" => self.passed += count,
                    "failed" | "error" | "errors" => self.failed += count,
                    "skipped" => self.skipped += count,
                    _ => {}
                }
            }
        }
    }
}

/// `4.04s`, or `64.10s (0:01:04)`.
fn is_time(text: &str) -> bool {
    text.split('s').next().is_some_and(|seconds| seconds.parse::<f64>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pytests_counts_are_read() {
        let mut counts = Counts::default();
        for line in [
            "..s.F [100%]",
            "the answer came in 3 pieces",
            "SKIPPED [2] tools/clients/conftest.py:126: n: only 1 is supported",
            "FAILED tools/clients/test_openai_chat.py::test_logprobs - assert 1 == 2",
            "1 failed, 21 passed, 2 skipped, 3 warnings, 1 error in 64.04s (0:01:04)",
        ] {
            counts.line(line);
        }
        assert_eq!((counts.passed, counts.failed, counts.skipped), (21, 2, 2));
        assert_eq!(counts.failures, ["clients tools/clients/test_openai_chat.py::test_logprobs"]);
        assert_eq!(counts.reasons, ["SKIP clients: [2] tools/clients/conftest.py:126: n: only 1 is supported"]);
    }
}
