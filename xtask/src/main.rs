//! Project tasks, run as `cargo xtask TASK`: the full test, tidy, goldens, set-up of outside tools.
//! Knows the repository, never the product: it imports no product crate and nothing of it ships.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a task talks to a person")]

mod clients;
mod golden;
mod metal_proof;
mod report;
mod setup;
mod shell;
mod steps;
mod tidy;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

const HELP: &str = "\
cargo xtask TASK

  test [STEP...]    every check of the project, or only the steps named; ends with a table and a one-line summary
  tidy [--list]     the rules that the compiler does not know; --list prints them
  golden [--write]  each golden is listed with its origin and its hash; --write renews the hashes
  metal-proof [N]   all that shows Metal kernels and host right without a Mac, every case in N orders of threads (3);
                    ends with a table of counts
  setup             installs the outside tools that `test` uses when they are there (cargo-deny)
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Runs one task; `false` means that it found something wrong.
fn run(words: &[&str]) -> Result<bool> {
    let root = repository_root()?;
    match words {
        ["test", names @ ..] => steps::test(&root, names),
        ["tidy"] => tidy::report(&root),
        ["tidy", "--list"] => {
            tidy::list();
            Ok(true)
        }
        ["golden"] => golden::report(&root),
        ["golden", "--write"] => golden::write(&root),
        ["metal-proof"] => metal_proof::run(&root, metal_proof::ORDERS),
        ["metal-proof", orders] => metal_proof::run(&root, metal_proof::parse(orders)?),
        ["setup"] => setup::install(&root),
        [] | ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            Ok(true)
        }
        other => bail!("no such task: {}\n\n{HELP}", other.join(" ")),
    }
}

/// The folder that holds the workspace, found from the working directory upwards.
fn repository_root() -> Result<PathBuf> {
    let here = std::env::current_dir().context("the working directory")?;
    let root = here.ancestors().find(|folder| folder.join("Cargo.lock").is_file() && folder.join("xtask").is_dir());
    root.map(PathBuf::from).with_context(|| format!("{} is not inside the repository", here.display()))
}
