//! Runs the program as its users do.
#![allow(dead_code, reason = "each test program uses a part")]

use std::ffi::OsStr;
use std::io::Write;
use std::process::{Command, Output, Stdio};

/// The program in a bare environment: no model is named, the Hugging Face cache is empty.
pub fn lily<S: AsRef<OsStr>>(args: &[S]) -> Command {
    let mut command = bare(env!("CARGO_BIN_EXE_lily"));
    command.args(args);
    command
}

/// Another program in the same environment.
pub fn bare(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env_remove("LILY_MODEL").env("HF_HUB_CACHE", "/nonexistent").env("XDG_CONFIG_HOME", "/nonexistent");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs it to its end, with nothing on stdin.
pub fn run(args: &[&str]) -> Output {
    lily(args).output().expect("starts")
}

/// The same with `input` on stdin.
pub fn run_with_stdin(args: &[&str], input: impl AsRef<[u8]>) -> Output {
    let mut child = lily(args).stdin(Stdio::piped()).spawn().expect("starts");
    // The program may end before it reads; that is for the caller to judge.
    let _ = child.stdin.take().expect("piped").write_all(input.as_ref());
    child.wait_with_output().expect("ends")
}

/// What it wrote to stdout.
pub fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).expect("UTF-8")
}

/// What it wrote to stderr.
pub fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).expect("UTF-8")
}
