//! `lily completions` and `lily man`: what a shell and `man` know about the program, made from the table of flags.

use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Command, CommandFactory};
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

/// The page of a command. Left alone, it would call its source by the command's name, and leave flags undescribed that
/// `-h` does not list.
fn page(command: &Command) -> Man {
    Man::new(command.clone().mut_args(|flag| flag.hide_short_help(false)))
        .source(concat!("lily ", env!("CARGO_PKG_VERSION")))
}

/// Runs `lily man`.
///
/// # Errors
/// One sentence: no such command, a page cannot be written, a closed stdout.
pub fn man(flags: &ManFlags) -> anyhow::Result<ExitCode> {
    // `lily help` has no page, so no page may name one.
    let mut program = Cli::command().disable_help_subcommand(true);
    program.build(); // gives each command its full name and the flags it inherits
    if let Some(folder) = &flags.dir {
        let write = |command| page(command).generate_to(folder).map(drop);
        std::fs::create_dir_all(folder)
            .and_then(|()| program.get_subcommands().chain([&program]).try_for_each(write))
            .with_context(|| folder.display().to_string())?;
        note(format_args!("wrote the manual pages to {}", folder.display()));
        return Ok(ExitCode::SUCCESS);
    }
    let page = match &flags.command {
        None => page(&program),
        Some(name) => match program.find_subcommand(name) {
            Some(command) => page(command),
            None => bail!("there is no command {name} (see `lily help`)"),
        },
    };
    let mut text = Vec::new();
    page.render(&mut text).context("man")?;
    write_stdout(&String::from_utf8(text).context("man")?)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Every long flag with its command, as clap has them.
    fn flags_of_the_program() -> BTreeSet<(String, String)> {
        let mut program = Cli::command();
        program.build();
        let flags = |command: &Command| {
            let name = command.get_name().to_owned();
            let shown = command.get_arguments().filter(|flag| !flag.is_hide_set());
            let longs: Vec<String> = shown.filter_map(|flag| flag.get_long().map(|long| format!("--{long}"))).collect();
            longs.into_iter().map(move |long| (long, name.clone()))
        };
        let all = program.get_subcommands().filter(|command| command.get_name() != "help").flat_map(flags);
        all.filter(|(long, _)| !["--help", "--version"].contains(&long.as_str())).collect()
    }

    /// Every flag with its commands, as the README's table has them.
    fn flags_of_the_readme() -> BTreeSet<(String, String)> {
        let readme = include_str!("../../../README.md");
        let section = readme.split("\n## Flags\n").nth(1).and_then(|rest| rest.split("\n## ").next()).unwrap();
        let program = Cli::command();
        let every: Vec<String> = program.get_subcommands().map(|command| command.get_name().to_owned()).collect();
        let mut commands: Vec<String> = Vec::new();
        let mut found = BTreeSet::new();
        for row in section.lines().filter(|line| line.starts_with("| `--")) {
            let row = row.replace("\\|", "/");
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            match cells[2] {
                "the same" => {}
                "all" => commands = every.clone(),
                some => commands = some.split(", ").map(str::to_owned).collect(),
            }
            for code in cells[1].split('`').skip(1).step_by(2) {
                let flag = code.split(' ').next().unwrap_or_default();
                found.extend(commands.iter().map(|command| (flag.to_owned(), command.clone())));
            }
        }
        found
    }

    #[test]
    fn the_readme_has_every_flag_of_every_command() {
        let (program, readme) = (flags_of_the_program(), flags_of_the_readme());
        assert!(program.len() > 40);
        let absent: Vec<_> = program.difference(&readme).collect();
        let invented: Vec<_> = readme.difference(&program).collect();
        assert!(absent.is_empty() && invented.is_empty(), "not in the table: {absent:?}; only there: {invented:?}");
    }

    #[test]
    fn pages_say_whose_they_are() {
        let mut program = Cli::command();
        program.build();
        for command in program.get_subcommands().chain([&program]) {
            let mut text = Vec::new();
            page(command).render(&mut text).unwrap();
            let text = String::from_utf8(text).unwrap();
            let undescribed =
                text.contains("\\-prefill\\-chunk\\fR \\fI<N>") && !text.contains("\nPrompt tokens computed");
            assert!(!undescribed, "{text}");
            let name = command.get_display_name().unwrap_or("lily");
            let source = concat!("\"lily ", env!("CARGO_PKG_VERSION"), "\"");
            let title = text.lines().find(|line| line.starts_with(".TH ")).unwrap();
            assert!(title.starts_with(&format!(".TH {name} 1 ")) && title.contains(source), "{title}");
        }
    }
}
