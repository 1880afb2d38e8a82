//! `cargo xtask test`: every check of the project, one after the other. A failing step does not stop the others.
//! The last lines are a table of the steps and one line `N passed, N failed, N skipped`; the full output of the tests is
//! also in `target/xtask/test.log`.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::report::Digest;
use crate::{clients, golden, shell, tidy};

/// How a step ended, with a few words for the table.
#[derive(Debug)]
pub enum Outcome {
    /// Nothing is wrong.
    Passed(String),
    /// Something is.
    Failed(String),
    /// It could not run.
    Skipped(String),
}

struct Step {
    name: &'static str,
    run: fn(&Path, &mut Digest) -> Result<Outcome>,
}

/// The test, in order: quick and frequent causes first.
static STEPS: &[Step] = &[
    Step { name: "fmt", run: |root, _| cargo(root, &["fmt", "--all", "--check"]) },
    Step { name: "clippy", run: |root, _| cargo(root, CLIPPY) },
    Step { name: "test", run: cargo_test },
    Step { name: "clients", run: clients::run },
    Step { name: "tidy", run: |root, _| Ok(verdict(tidy::report(root)?)) },
    Step { name: "golden", run: |root, _| Ok(verdict(golden::report(root)?)) },
    Step { name: "deny", run: |root, _| cargo_deny(root) },
    Step { name: "shell", run: |root, _| shell_syntax(root) },
];

/// With the Metal host and its device in software, so that both are compiled, linted and tested.
pub const FEATURES: &str = "lily/software-metal";

const CLIPPY: &[&str] = &[
    "clippy",
    "--workspace",
    "--features",
    FEATURES,
    "--all-targets",
    "--release",
    "--locked",
    "--",
    "-D",
    "warnings",
];

/// `--nocapture` because a passing test's `SKIP` line must reach the table.
const TEST: &[&str] =
    &["test", "--workspace", "--features", FEATURES, "--release", "--locked", "--no-fail-fast", "--", "--nocapture"];

/// A finished step.
struct Row {
    name: &'static str,
    outcome: Outcome,
    seconds: f64,
}

/// Runs the steps named, or all of them; `true` if none failed.
///
/// # Errors
/// No step has that name.
pub fn test(root: &Path, names: &[&str]) -> Result<bool> {
    if let Some(unknown) = names.iter().find(|name| !STEPS.iter().any(|step| step.name == **name)) {
        let known: Vec<&str> = STEPS.iter().map(|step| step.name).collect();
        bail!("no step {unknown}; there are: {}", known.join(" "));
    }
    let mut digest = Digest::default();
    let mut rows = Vec::new();
    for step in STEPS.iter().filter(|step| names.is_empty() || names.contains(&step.name)) {
        println!("\n=== {}", step.name);
        let start = Instant::now();
        let outcome = (step.run)(root, &mut digest).unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")));
        rows.push(Row { name: step.name, outcome, seconds: start.elapsed().as_secs_f64() });
    }
    println!("\n{}", summary(&rows, &digest));
    Ok(!rows.iter().any(|row| matches!(row.outcome, Outcome::Failed(_))))
}

/// The table, what was skipped and what failed, and the last line, which counts each test, and each other step as one.
fn summary(rows: &[Row], digest: &Digest) -> String {
    let mut lines: Vec<String> = digest.skips.iter().chain(&digest.reasons).cloned().collect();
    lines.extend(digest.failures.iter().map(|name| format!("FAILED {name}")));
    lines.push(format!("{:<8} {:<8} {:>8}  {}", "step", "result", "seconds", "note"));
    let (mut passed, mut failed) = (digest.really_passed(), digest.failed);
    let mut skipped = digest.skips.len() + digest.ignored;
    for row in rows {
        let (word, note, count) = match &row.outcome {
            Outcome::Passed(note) => ("passed", note, &mut passed),
            Outcome::Failed(note) => ("FAILED", note, &mut failed),
            Outcome::Skipped(note) => ("skipped", note, &mut skipped),
        };
        // Steps of many tests count each of them, unless they did not run.
        let counted = row.name == "test" || row.name == "clients" && !matches!(row.outcome, Outcome::Skipped(_));
        *count += usize::from(!counted);
        lines.push(format!("{:<8} {word:<8} {:>8.1}  {note}", row.name, row.seconds).trim_end().to_owned());
    }
    let many = |row: &&Row| matches!(row.name, "test" | "clients") && matches!(row.outcome, Outcome::Failed(_));
    let broken = rows.iter().filter(many).count();
    failed += if digest.failed == 0 { broken } else { 0 }; // it did not compile, or a test binary crashed
    lines.push(format!("{passed} passed, {failed} failed, {skipped} skipped"));
    lines.join("\n")
}

fn verdict(ok: bool) -> Outcome {
    if ok { Outcome::Passed(String::new()) } else { Outcome::Failed("see above".into()) }
}

fn cargo(root: &Path, args: &[&str]) -> Result<Outcome> {
    Ok(verdict(shell::stream(root, "cargo", args)?))
}

/// All tests, printed as they come, kept in a log and counted.
fn cargo_test(root: &Path, digest: &mut Digest) -> Result<Outcome> {
    let folder = root.join("target/xtask");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let mut log = File::create(folder.join("test.log")).context("target/xtask/test.log")?;
    let mut written = Ok(());
    let ok = shell::run(root, "cargo", TEST, |line| {
        println!("{line}");
        digest.line(line);
        if written.is_ok() {
            written = writeln!(log, "{line}");
        }
    })?;
    written.context("target/xtask/test.log")?;
    let note = format!("{} passed, {} failed, {} ignored", digest.passed, digest.failed, digest.ignored);
    let note = format!("{note}; {} skipped themselves (counted as passed by cargo)", digest.skips.len());
    Ok(match (ok, digest.failed) {
        (true, 0) => Outcome::Passed(note),
        (_, 0) => Outcome::Failed(format!("{note}; it did not compile or a test binary crashed")),
        (_, _) => Outcome::Failed(note),
    })
}

fn cargo_deny(root: &Path) -> Result<Outcome> {
    if !shell::works("cargo", &["deny", "--version"]) {
        let reason = "cargo-deny is not installed: `cargo xtask setup` installs it (4 minutes)";
        println!("SKIP deny: {reason}");
        return Ok(Outcome::Skipped(reason.into()));
    }
    cargo(root, &["deny", "--locked", "check", "--hide-inclusion-graph", "licenses", "bans", "sources"])
}

/// Every shell script of the repository parses.
fn shell_syntax(root: &Path) -> Result<Outcome> {
    let mut bad = Vec::new();
    let scripts = tidy::files(root)?.into_iter().filter(|path| path == ".ci/run" || path.ends_with(".sh"));
    for script in scripts {
        if !shell::stream(root, "bash", &["-n", &script])? {
            bad.push(script);
        }
    }
    Ok(if bad.is_empty() { Outcome::Passed(String::new()) } else { Outcome::Failed(bad.join(" ")) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &'static str, outcome: Outcome) -> Row {
        Row { name, outcome, seconds: 1.0 }
    }

    fn last(rows: &[Row], digest: &Digest) -> String {
        summary(rows, digest).lines().last().unwrap().to_owned()
    }

    #[test]
    fn the_last_line_counts_tests_and_steps() {
        let mut digest = Digest::default();
        digest.line("Running unittests src/lib.rs (target/release/deps/lily-5f0c)");
        digest.line("SKIP a: b");
        digest.line("test result: ok. 10 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out");
        let rows = [
            row("fmt", Outcome::Passed(String::new())),
            row("test", Outcome::Passed(String::new())),
            row("deny", Outcome::Skipped("absent".into())),
        ];
        assert_eq!(last(&rows, &digest), "10 passed, 0 failed, 3 skipped");
    }

    #[test]
    fn a_failed_step_and_a_crashed_test_run_show() {
        let rows = [row("clippy", Outcome::Failed("see above".into())), row("test", Outcome::Failed("crash".into()))];
        assert_eq!(last(&rows, &Digest::default()), "0 passed, 2 failed, 0 skipped");
        let mut digest = Digest::default();
        digest.line("failures:");
        digest.line("    plan::fuse");
        digest.line("test result: FAILED. 4 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out");
        let text = summary(&rows[1..], &digest);
        assert!(text.contains("plan::fuse") && text.ends_with("4 passed, 1 failed, 0 skipped"), "{text}");
    }

    #[test]
    fn an_unknown_step_is_refused() {
        assert!(test(Path::new("."), &["no-such-step"]).is_err());
    }
}
