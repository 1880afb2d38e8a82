//! `lily completions` and `lily man`: what a shell and `man` know about the program, made from the table of flags.

use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::CommandFactory;
use clap_mangen::Man;

use crate::flags::{Cli, CompletionsFlags, ManFlags};
use crate::terminal::{note, write_stdout};

/// Runs `lily completions`.
///
/// # Errors
/// A closed stdout.
pub fn completions(flags: &CompletionsFlags) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(flags.shell, &mut Cli::command(), "lily", &mut script);
    write_stdout(&String::from_utf8(script).context("completions")?)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `lily man`.
///
/// # Errors
/// One sentence: no such command, a page cannot be written, a closed stdout.
pub fn man(flags: &ManFlags) -> anyhow::Result<ExitCode> {
    let mut program = Cli::command();
    program.build(); // gives each command its full name and the flags it inherits
    if let Some(folder) = &flags.dir {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        clap_mangen::generate_to(program, folder).with_context(|| folder.display().to_string())?;
        note(format_args!("wrote the manual pages to {}", folder.display()));
        return Ok(ExitCode::SUCCESS);
    }
    let page = match &flags.command {
        None => Man::new(program),
        Some(name) => match program.find_subcommand(name) {
            Some(command) => Man::new(command.clone()),
            None => bail!("there is no command {name} (see `lily help`)"),
        },
    };
    let mut text = Vec::new();
    page.render(&mut text).context("man")?;
    write_stdout(&String::from_utf8(text).context("man")?)?;
    Ok(ExitCode::SUCCESS)
}
