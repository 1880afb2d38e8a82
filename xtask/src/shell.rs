//! Runs a program from the repository root and hands its output on line by line, as it comes.
//! Both output streams share one pipe, so lines keep the order in which the program wrote them.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

/// Runs `program args…` without standard input, calls `line` for each line of output, and tells whether it succeeded.
///
/// # Errors
/// The program cannot be started.
pub fn run(root: &Path, program: &str, args: &[&str], mut line: impl FnMut(&str)) -> Result<bool> {
    let (reader, writer) = std::io::pipe().context("a pipe")?;
    let mut command = Command::new(program);
    command.args(args).current_dir(root).stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn().with_context(|| format!("{program} does not start"))?;
    drop(command); // it holds the pipe's write ends: the loop below would never see the end
    let mut reader = BufReader::new(reader);
    let mut bytes = Vec::new();
    while reader.read_until(b'\n', &mut bytes)? > 0 {
        line(String::from_utf8_lossy(&bytes).trim_end_matches(['\n', '\r']));
        bytes.clear();
    }
    Ok(child.wait()?.success())
}

/// As `run`, printing each line.
///
/// # Errors
/// The program cannot be started.
pub fn stream(root: &Path, program: &str, args: &[&str]) -> Result<bool> {
    run(root, program, args, |line| println!("{line}"))
}

/// Standard output of a program that must succeed.
///
/// # Errors
/// The program cannot be started or fails.
pub fn output(root: &Path, program: &str, args: &[&str]) -> Result<Vec<u8>> {
    let done = Command::new(program).args(args).current_dir(root).stdin(Stdio::null()).output();
    let done = done.with_context(|| format!("{program} does not start"))?;
    anyhow::ensure!(
        done.status.success(),
        "{program} {}: {}",
        args.join(" "),
        String::from_utf8_lossy(&done.stderr).trim()
    );
    Ok(done.stdout)
}

/// Whether `program args…` starts and succeeds.
pub fn works(program: &str, args: &[&str]) -> bool {
    let quiet =
        Command::new(program).args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    quiet.is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_streams_come_in_order() {
        let mut lines = Vec::new();
        let script = "echo one; echo two >&2; echo three; exit 3";
        let ok = run(Path::new("."), "sh", &["-c", script], |line| lines.push(line.to_owned())).unwrap();
        assert!(!ok);
        assert_eq!(lines, ["one", "two", "three"]);
    }

    #[test]
    fn a_missing_program_is_an_error_not_a_pass() {
        assert!(run(Path::new("."), "no-such-program-here", &[], |_| ()).is_err());
        assert!(!works("no-such-program-here", &[]));
    }
}
