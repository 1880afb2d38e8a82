//! `cargo xtask metal-proof`: all that shows the Metal kernels and their host right on a machine without Metal, more of it
//! than the tests run each time: more orders of threads, lints for macOS. Tests print `PROOF <what>: <numbers>`; those lines are the table at the end.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::{shell, tidy};

/// Orders of threads, unless more are asked for.
pub const ORDERS: usize = 3;
/// Orders that there are tests for.
const MOST_ORDERS: usize = 8;

/// Where the Metal host is, which only a Mac compiles for itself.
const HOST: &str = "crates/lily-kernels/src/metal/";
const HOST_TARGET: &str = "aarch64-apple-darwin";

/// A number of orders.
///
/// # Errors
/// It is none, or too many.
pub fn parse(orders: &str) -> Result<usize> {
    match orders.parse() {
        Ok(n) if (1..=MOST_ORDERS).contains(&n) => Ok(n),
        _ => bail!("{orders} orders of threads: 1 to {MOST_ORDERS} are possible"),
    }
}

/// Runs everything; `false` if something failed.
///
/// # Errors
/// A program does not start.
pub fn run(root: &Path, orders: usize) -> Result<bool> {
    let orders: Vec<String> = (1..=orders).map(|order| format!("order_{order}")).collect();
    let mut of_kernels = vec!["every_library"];
    of_kernels.extend(orders.iter().map(String::as_str));
    let mut table = Vec::new();
    let mut ok = tests(root, "software-metal", &["strict", "executor", "host", "counts"], &[], &mut table)?;
    ok &= tests(root, "lily-kernels", &["cases_on_metal"], &of_kernels, &mut table)?;
    ok &= tests(root, "lily-kernels", &["barriers_on_metal"], &[], &mut table)?;
    ok &= tests(root, "lily-kernels", &["plans"], &["metal::"], &mut table)?;
    ok &= tests(root, "lily-kernels", &["counts_on_metal"], &[], &mut table)?;
    ok &= host(root, &mut table)?;
    println!("\n{}", table.join("\n"));
    println!("{}", if ok { "all of it passed" } else { "FAILED: see above" });
    Ok(ok)
}

/// Runs tests of some binaries, those of these names or all, and adds what they prove.
fn tests(root: &Path, package: &str, binaries: &[&str], names: &[&str], table: &mut Vec<String>) -> Result<bool> {
    let mut args = vec!["test", "--release", "--locked", "-p", package];
    if package == "lily-kernels" {
        args.extend(["--features", "software-metal"]);
    }
    binaries.iter().for_each(|binary| args.extend(["--test", binary]));
    args.extend(["--", "--nocapture", "--include-ignored"]);
    args.extend(names);
    shell::run(root, "cargo", &args, |line| {
        println!("{line}");
        table.extend(proof(line));
    })
}

/// What a line of output proves. A test may have left text without a newline in front of it.
fn proof(line: &str) -> Option<String> {
    let at = line.find("PROOF ")?;
    let (what, numbers) = line[at..].strip_prefix("PROOF ")?.split_once(": ")?;
    Some(format!("{what:<60} {numbers}"))
}

/// Type-checks and lints the host as macOS would compile it.
fn host(root: &Path, table: &mut Vec<String>) -> Result<bool> {
    let installed = shell::output(root, "rustc", &["--print", "sysroot"])?;
    let sysroot = String::from_utf8_lossy(&installed).trim().to_owned();
    let what = format!("lines of the host, type-checked and linted for {HOST_TARGET}");
    if !Path::new(&sysroot).join("lib/rustlib").join(HOST_TARGET).is_dir() {
        table.push(format!("{what:<60} SKIP: `rustup target add {HOST_TARGET}`"));
        return Ok(true);
    }
    let args = ["clippy", "--locked", "--target", HOST_TARGET, "-p", "lily-kernels", "--", "-D", "warnings"];
    let ok = shell::stream(root, "cargo", &args)?;
    let mut lines = 0;
    for path in tidy::files(root)?.into_iter().filter(|path| path.starts_with(HOST) && path.ends_with(".rs")) {
        lines += std::fs::read_to_string(root.join(&path)).with_context(|| path.clone())?.lines().count();
    }
    table.push(format!("{what:<60} {}", if ok { lines.to_string() } else { "FAILED".to_owned() }));
    Ok(ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_proof_is_a_row() {
        assert_eq!(
            proof("test a ... PROOF cases: 7, 0 failed").unwrap().trim_end(),
            format!("{:<60} 7, 0 failed", "cases")
        );
        assert_eq!(proof("test a ... ok"), None);
    }

    #[test]
    fn orders_are_a_number_that_there_are_tests_for() {
        assert_eq!(parse("5").unwrap(), 5);
        assert!(parse("0").is_err() && parse("9").is_err() && parse("many").is_err());
    }
}
