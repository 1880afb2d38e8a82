//! Where flags come from when the command line does not give them: `LILY_<FLAG>` in the environment, then the
//! configuration file, then the default. A flag is defined once, for clap; its variable and its key follow from its name,
//! so a new flag has both. What is found becomes the default that clap sees: such a value conflicts with nothing that was
//! typed, and clap's `env`, whose values count as typed, would.

mod file;

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, CommandFactory, FromArgMatches, ValueHint};

use super::{Cli, Env, hub, process_env};
use file::{Entry, File, Scalar};

/// Commands whose flags are settings, all of them.
const COMMANDS: [&str; 5] = ["chat", "run", "serve", "bench", "pull"];
/// Commands that describe a model: they take `model`, and nothing else that would change what they describe.
const DESCRIBING: [&str; 2] = ["plan", "inspect"];

/// Flags of `lily config`.
#[derive(Debug, Args)]
pub struct ConfigFlags {
    /// Every setting of this command, its default included, instead of what is set for any
    #[arg(value_name = "COMMAND", value_parser = COMMANDS)]
    pub command: Option<String>,
}

/// What the program was asked to do.
pub struct Loaded {
    /// Command and flags, from all places.
    pub cli: Cli,
    /// The model, and where it was named, when that was not on the command line.
    pub model: Option<String>,
}

/// The command line over the environment over the configuration file. Ends the program for `--help` and wrong usage.
///
/// # Errors
/// One sentence that names the variable, or the file and its line.
pub fn load() -> anyhow::Result<Loaded> {
    // The first parse tells usage errors as clap does.
    load_from(std::env::args_os().collect(), &process_env).or_else(|error| match error.downcast::<clap::Error>() {
        Ok(usage) => usage.exit(),
        Err(error) => Err(error),
    })
}

fn load_from(args: Vec<OsString>, env: Env) -> anyhow::Result<Loaded> {
    let mut program = Cli::command();
    let typed = program.clone().try_get_matches_from(&args)?;
    let (name, typed) = typed.subcommand().context("no command")?;
    let takes_settings = COMMANDS.contains(&name) || DESCRIBING.contains(&name);
    let mut model = None;
    if takes_settings {
        let file = open(typed.get_one::<PathBuf>("config").map(PathBuf::as_path), env)?;
        for setting in settings(&program, name, file.as_ref(), env)? {
            if conflicts(&program, name, &setting, typed) {
                continue;
            }
            let was_typed = typed.value_source(&setting.id) == Some(ValueSource::CommandLine);
            if setting.long == "model" && !was_typed {
                model = Some(format!("model: {} ({})", setting.values.join(", "), setting.source));
            }
            let values = setting.values;
            program = program.mut_subcommand(name, |sub| sub.mut_arg(setting.id, |arg| arg.default_values(values)));
        }
    }
    let matches = program.try_get_matches_from(args)?;
    Ok(Loaded { cli: Cli::from_arg_matches(&matches)?, model })
}

/// Whether the command line has something that this flag may not stand beside.
fn conflicts(program: &Command, name: &str, setting: &Setting, typed: &ArgMatches) -> bool {
    let Some(command) = program.find_subcommand(name) else { return false };
    let given = |arg: &&Arg| typed.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let refuses = |arg: &Arg, id: &str| command.get_arg_conflicts_with(arg).iter().any(|other| other.get_id() == id);
    let own = command.get_arguments().find(|arg| arg.get_id() == setting.id.as_str());
    command
        .get_arguments()
        .filter(given)
        .any(|other| refuses(other, &setting.id) || own.is_some_and(|own| refuses(own, other.get_id().as_str())))
}

/// The file that `--config` or `LILY_CONFIG` names, which must be there, or the usual one, which need not.
fn open(named: Option<&Path>, env: Env) -> anyhow::Result<Option<File>> {
    if let Some(path) = named.map(Path::to_owned).or_else(|| hub::env_path(env, "LILY_CONFIG")) {
        return File::read(&path).and_then(|file| checked(file, env)).map(Some);
    }
    match usual(env).filter(|path| path.exists()) {
        Some(path) => File::read(&path).and_then(|file| checked(file, env)).map(Some),
        None => Ok(None),
    }
}

/// `$XDG_CONFIG_HOME/lily/config.toml`, else below `~/.config`, on macOS too.
fn usual(env: Env) -> Option<PathBuf> {
    let home = || env("HOME").map(|home| Path::new(&home).join(".config"));
    hub::env_path(env, "XDG_CONFIG_HOME").or_else(home).map(|folder| folder.join("lily/config.toml"))
}

/// A value from the environment or the file.
#[derive(Debug, Clone, PartialEq)]
struct Setting {
    long: String,
    /// As clap calls it.
    id: String,
    values: Vec<String>,
    source: Source,
}

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq)]
enum Source {
    Default,
    Variable(String),
    Line(PathBuf, usize),
}

impl fmt::Display for Source {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Default => out.write_str("default"),
            Self::Variable(name) => out.write_str(name),
            Self::Line(path, line) => write!(out, "{}, line {line}", path.display()),
        }
    }
}

/// The flags of a command that are settings.
fn flags<'a>(program: &'a Command, name: &str) -> impl Iterator<Item = (&'a str, &'a Arg)> {
    let only_model = DESCRIBING.contains(&name);
    let arguments = program.find_subcommand(name).into_iter().flat_map(Command::get_arguments);
    let named = arguments.filter_map(|arg| arg.get_long().map(|long| (long, arg)));
    named.filter(move |(long, _)| !["help", "version", "config"].contains(long) && (!only_model || *long == "model"))
}

fn flag<'a>(program: &'a Command, name: &str, key: &str) -> Option<&'a Arg> {
    flags(program, name).find(|(long, _)| *long == key).map(|(_, arg)| arg)
}

/// Whether a value may not be printed: the names of such flags end so.
fn is_secret(arg: &Arg) -> bool {
    arg.get_long().is_some_and(|long| long.ends_with("key") || long.ends_with("keys"))
}

/// What the environment and the file say about the flags of one command.
fn settings(program: &Command, name: &str, file: Option<&File>, env: Env) -> anyhow::Result<Vec<Setting>> {
    let mut found = Vec::new();
    for (long, arg) in flags(program, name) {
        let variable = format!("LILY_{}", long.replace('-', "_").to_uppercase());
        let (values, source) = if let Some(value) = env(&variable).filter(|value| !value.is_empty()) {
            let Ok(text) = value.into_string() else { bail!("{variable} is not UTF-8 text") };
            (from_text(arg, &text), Source::Variable(variable))
        } else if let Some((file, entry)) = file.and_then(|file| Some((file, entry_of(file, name, long)?))) {
            (from_entry(arg, entry), Source::Line(file.path.clone(), entry.line))
        } else {
            continue;
        };
        let values = values
            .and_then(|values| accepted(program, name, arg, values))
            .map_err(|reason| anyhow::anyhow!("{source}: --{long}: {reason}"))?;
        let values = values.into_iter().map(|value| at_home(arg, value, env)).collect();
        found.push(Setting { long: long.to_owned(), id: arg.get_id().to_string(), values, source });
    }
    Ok(found)
}

/// What the command's own section says, else what stands above the sections.
fn entry_of<'a>(file: &'a File, name: &str, key: &str) -> Option<&'a Entry> {
    let own = file.sections.iter().filter(|section| section.name == name).flat_map(|section| &section.entries);
    own.chain(&file.shared).find(|entry| entry.key == key)
}

fn is_switch(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::SetTrue)
}

/// The values of a variable: one, or several where the flag itself takes several in one word.
fn from_text(arg: &Arg, text: &str) -> Result<Vec<String>, String> {
    if is_switch(arg) {
        return match text.to_ascii_lowercase().as_str() {
            "1" | "true" | "yes" | "on" => Ok(vec!["true".into()]),
            "0" | "false" | "no" | "off" => Ok(vec!["false".into()]),
            _ => Err(format!("{text:?} is neither true nor false")),
        };
    }
    Ok(match arg.get_value_delimiter() {
        Some(delimiter) => text.split(delimiter).map(str::to_owned).collect(),
        None => vec![text.to_owned()],
    })
}

fn from_entry(arg: &Arg, entry: &Entry) -> Result<Vec<String>, String> {
    let repeats = matches!(arg.get_action(), ArgAction::Append);
    if entry.is_list && !repeats {
        return Err("one value is wanted, not a list".to_owned());
    }
    let text = |value: &Scalar| match (value, is_switch(arg)) {
        (Scalar::Bool(value), true) => Ok(value.to_string()),
        (Scalar::Number(_) | Scalar::Text(_), true) => Err("true or false is wanted".to_owned()),
        (Scalar::Bool(value), false) => Err(format!("{value} is no value for it")),
        (Scalar::Number(number), false) => Ok(number.clone()),
        (Scalar::Text(text), false) => Ok(text.clone()),
    };
    entry.values.iter().map(text).collect()
}

/// The values, if the flag itself would take each.
fn accepted(program: &Command, name: &str, arg: &Arg, values: Vec<String>) -> Result<Vec<String>, String> {
    if is_switch(arg) {
        return Ok(values);
    }
    let long = arg.get_long().unwrap_or_default();
    for value in &values {
        let words = ["lily".to_owned(), name.to_owned(), format!("--{long}={value}")];
        let Err(error) = program.clone().try_get_matches_from(words) else { continue };
        let shown = if is_secret(arg) { "the value".to_owned() } else { format!("{value:?}") };
        let of_values = matches!(error.kind(), ErrorKind::ValueValidation | ErrorKind::InvalidValue);
        if of_values {
            return Err(format!("{shown}: {}", reason(&error)));
        }
    }
    Ok(values)
}

/// Why clap refuses a value, in its parser's words.
fn reason(error: &clap::Error) -> String {
    if let Some(source) = std::error::Error::source(error) {
        return source.to_string();
    }
    match error.get(ContextKind::ValidValue) {
        Some(ContextValue::Strings(values)) if !values.is_empty() => format!("one of {} is wanted", values.join(", ")),
        _ => "this is no value for it".to_owned(),
    }
}

/// No shell expands what stands in a file: a `~` in front of a path is the home folder.
fn at_home(arg: &Arg, value: String, env: Env) -> String {
    let is_path = matches!(arg.get_value_hint(), ValueHint::AnyPath | ValueHint::FilePath | ValueHint::DirPath);
    match (value.strip_prefix("~/"), env("HOME").and_then(|home| home.into_string().ok())) {
        (Some(rest), Some(home)) if is_path => format!("{}/{rest}", home.trim_end_matches('/')),
        _ => value,
    }
}

/// Every key is a flag, and every value one that it takes: those of other commands too, so that a mistake does not wait.
fn checked(file: File, env: Env) -> anyhow::Result<File> {
    let program = Cli::command();
    let all = || COMMANDS.iter().chain(&DESCRIBING);
    let at = |line: usize| Source::Line(file.path.clone(), line);
    for entry in &file.shared {
        if !all().any(|name| flag(&program, name, &entry.key).is_some()) {
            let known = COMMANDS.iter().flat_map(|name| flags(&program, name)).map(|(long, _)| long);
            bail!("{}: no flag is called {}{}", at(entry.line), entry.key, meant(&entry.key, known.chain(COMMANDS)));
        }
    }
    for section in &file.sections {
        if !all().any(|name| *name == section.name) {
            let meant = meant(&section.name, COMMANDS.into_iter());
            bail!("{}: no command with settings is called {}{meant}", at(section.line), section.name);
        }
        for entry in &section.entries {
            if flag(&program, &section.name, &entry.key).is_none() {
                let meant = meant(&entry.key, flags(&program, &section.name).map(|(long, _)| long));
                bail!("{}: {} has no flag {}{meant}", at(entry.line), section.name, entry.key);
            }
        }
    }
    // The variables of other commands are not looked at: what they say may not concern this one.
    let only_home = |name: &str| (name == "HOME").then(|| env(name)).flatten();
    for name in all() {
        settings(&program, name, Some(&file), &only_home)?;
    }
    Ok(file)
}

/// The name that was meant, if one is near.
fn meant<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let near = known.map(|known| (distance(name, known), known)).min();
    let near = near.filter(|(distance, known)| *distance <= 1 + known.len() / 4);
    near.map_or_else(String::new, |(_, known)| format!("; is {known} meant?"))
}

/// How many letters must be added, dropped or replaced.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, letter) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for j in 0..b.len() {
            let replaced = diagonal + usize::from(letter != b[j]);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// The text of `lily config`.
///
/// # Errors
/// One sentence about a variable or a line of the file.
pub fn describe(named: Option<&Path>, command: Option<&str>) -> anyhow::Result<String> {
    describe_from(named, command, &process_env)
}

fn describe_from(named: Option<&Path>, command: Option<&str>, env: Env) -> anyhow::Result<String> {
    let program = Cli::command();
    let file = open(named, env)?;
    let mut rows: Vec<(Setting, Vec<&str>)> = Vec::new();
    for name in COMMANDS.iter().chain(&DESCRIBING).filter(|name| command.is_none_or(|asked| asked == **name)) {
        let set = settings(&program, name, file.as_ref(), env)?;
        for (long, arg) in flags(&program, name) {
            let mut row = set.iter().find(|setting| setting.long == long).cloned().unwrap_or_else(|| Setting {
                long: long.to_owned(),
                id: String::new(),
                values: arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect(),
                source: Source::Default,
            });
            if row.source != Source::Default && is_secret(arg) {
                row.values = vec!["(set, not shown)".to_owned()];
            }
            match rows.iter_mut().find(|(known, _)| *known == row) {
                _ if command.is_none() && row.source == Source::Default => {}
                Some((_, commands)) => commands.push(name),
                None => rows.push((row, vec![name])),
            }
        }
    }
    let place = match (&file, usual(env)) {
        (Some(file), _) => format!("file: {}", file.path.display()),
        (None, Some(path)) => format!("file: none ({} is not there)", path.display()),
        (None, None) => "file: none".to_owned(),
    };
    let mut lines = vec![place];
    if rows.is_empty() {
        lines.push("nothing is set; every flag has its default".to_owned());
    }
    let value = |row: &Setting| if row.values.is_empty() { "-".to_owned() } else { row.values.join(", ") };
    let width = |text: &dyn Fn(&Setting) -> usize| rows.iter().map(|(row, _)| text(row)).max().unwrap_or(0);
    let (names, values) = (width(&|row| row.long.len()), width(&|row| value(row).chars().count().min(40)));
    for (row, commands) in &rows {
        let whose = if command.is_none() { format!(" ({})", commands.join(", ")) } else { String::new() };
        lines.push(format!("{:<names$}  {:<values$}  {}{whose}", row.long, value(row), row.source));
    }
    Ok(lines.join("\n") + "\n")
}

#[cfg(test)]
mod tests;
