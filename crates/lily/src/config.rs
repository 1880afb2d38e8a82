//! `lily config`: the settings as they are, and where each comes from.

use std::path::Path;
use std::process::ExitCode;

use crate::flags::{self, ConfigFlags};
use crate::terminal::write_stdout;

/// Runs the command.
///
/// # Errors
/// One sentence about a variable or a line of the file, a closed stdout.
pub fn config(flags: &ConfigFlags, file: Option<&Path>) -> anyhow::Result<ExitCode> {
    write_stdout(&flags::describe(file, flags.command.as_deref())?)?;
    Ok(ExitCode::SUCCESS)
}
