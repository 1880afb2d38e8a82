//! `cargo xtask setup`: installs the outside tools that `cargo xtask test` uses when it finds them.

use std::path::Path;

use anyhow::Result;

use crate::shell;

/// Installs cargo-deny unless it is there: about four minutes of compiling on two cores.
///
/// # Errors
/// cargo does not start.
pub fn install(root: &Path) -> Result<bool> {
    if shell::works("cargo", &["deny", "--version"]) {
        println!("cargo-deny is already installed");
        return Ok(true);
    }
    shell::stream(root, "cargo", &["install", "cargo-deny", "--locked"])
}
