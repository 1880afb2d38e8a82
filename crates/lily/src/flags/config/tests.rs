use std::io::Write;

use super::*;
use crate::flags::{Command as Asked, ModelFlags, ServeFlags};

fn env<'a>(pairs: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
    move |name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into())
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

/// Parses `args` (after `lily`) with a configuration file of this text.
fn load(args: &[&str], text: &str, pairs: &[(&str, &str)]) -> anyhow::Result<Loaded> {
    let file = file(text);
    let path = file.path().to_str().unwrap();
    let args = ["lily"].iter().chain(args).chain(&["--config", path]).map(OsString::from).collect();
    load_from(args, &env(pairs))
}

fn serve(args: &[&str], text: &str, pairs: &[(&str, &str)]) -> ServeFlags {
    let command = load(&[&["serve"], args].concat(), text, pairs).unwrap().cli.command;
    let Asked::Serve(flags) = command else { panic!("{command:?}") };
    flags
}

/// The sentence about a file of this text, without the file's name.
fn refusal(text: &str) -> String {
    let error = load(&["run", "x"], text, &[]).err().unwrap_or_else(|| panic!("{text} is taken")).to_string();
    error.split_once(", line ").map_or(error.clone(), |(_, rest)| rest.to_owned())
}

#[test]
fn a_flag_beats_the_environment_beats_the_file_beats_the_default() {
    let text = "[serve]\nport = 1\n";
    let variable = [("LILY_PORT", "2")];
    assert_eq!(serve(&["--port", "3"], text, &variable).port, 3);
    assert_eq!(serve(&[], text, &variable).port, 2);
    assert_eq!(serve(&[], text, &[]).port, 1);
    assert_eq!(serve(&[], "", &[]).port, 8080);
    assert_eq!(serve(&[], text, &[("LILY_PORT", "")]).port, 1, "an empty variable is none");
}

#[test]
fn a_section_beats_what_is_shared() {
    let text = "context = 100\nthreads = 3\nmax-tokens = 7\n[serve]\ncontext = 200\n[run]\nno-think = true\nstop = ['a', 'b']\n";
    let context = |model: &ModelFlags| model.context.map(std::num::NonZeroUsize::get);
    let flags = serve(&[], text, &[]);
    assert_eq!((context(&flags.model), flags.model.threads.map(|n| n.get())), (Some(200), Some(3)));
    let Asked::Run(flags) = load(&["run", "x"], text, &[]).unwrap().cli.command else { panic!() };
    assert_eq!((context(&flags.model), flags.sampling.max_tokens), (Some(100), Some(7)));
    assert!(flags.conversation.no_think && flags.sampling.stop == ["a", "b"]);
    let Asked::Run(flags) = load(&["run", "--stop", "c", "x"], text, &[]).unwrap().cli.command else { panic!() };
    assert_eq!(flags.sampling.stop, ["c"], "a list is replaced as a whole");
    let Asked::Bench(flags) = load(&["bench"], "[bench]\nprompt-tokens = [5, 6]", &[]).unwrap().cli.command else {
        panic!()
    };
    assert_eq!(flags.prompt_tokens.iter().map(|n| n.get()).collect::<Vec<_>>(), [5, 6]);
    let Asked::Bench(flags) = load(&["bench"], "", &[("LILY_PROMPT_TOKENS", "7,8")]).unwrap().cli.command else {
        panic!()
    };
    assert_eq!(flags.prompt_tokens.iter().map(|n| n.get()).collect::<Vec<_>>(), [7, 8]);
}

#[test]
fn switches_can_be_set_and_unset_by_a_variable() {
    let think = |value: &str| {
        let loaded = load(&["run", "x"], "[run]\nno-think = true\n", &[("LILY_NO_THINK", value)]);
        match loaded.map(|loaded| loaded.cli.command) {
            Ok(Asked::Run(flags)) => Ok(flags.conversation.no_think),
            Ok(_) => panic!("not run"),
            Err(error) => Err(error.to_string()),
        }
    };
    assert_eq!((think("0"), think("Yes")), (Ok(false), Ok(true)));
    assert_eq!(think("maybe"), Err("LILY_NO_THINK: --no-think: \"maybe\" is neither true nor false".into()));
}

#[test]
fn a_setting_stands_back_where_the_command_line_says_something_else() {
    let text = "model = '/m'\n[run]\nsystem = 's'\nno-think = true\n";
    let Asked::Run(flags) = load(&["run", "--raw", "x"], text, &[]).unwrap().cli.command else { panic!() };
    assert!(flags.raw && flags.conversation.system.is_none() && !flags.conversation.no_think);
    let Asked::Inspect(flags) = load(&["inspect", "/other"], text, &[]).unwrap().cli.command else { panic!() };
    assert_eq!((flags.path, flags.model), (Some("/other".into()), None));
    let Asked::Inspect(flags) = load(&["inspect"], text, &[]).unwrap().cli.command else { panic!() };
    assert_eq!(flags.model, Some("/m".into()));
    let Asked::Inspect(flags) = load(&["inspect"], "device = 'cpu'\ncontext = 5", &[]).unwrap().cli.command else {
        panic!()
    };
    assert_eq!((flags.device, flags.context), (None, None), "inspect describes, so it takes the model only");
}

#[test]
fn the_model_is_told_when_the_command_line_did_not_name_it() {
    let text = "model = \"~/m\"\n";
    let line = |args: &[&str], pairs: &[(&str, &str)]| load(args, text, pairs).unwrap().model;
    let home = ("HOME", "/home/ada");
    let told = line(&["chat"], &[home]).unwrap();
    assert!(told.starts_with("model: /home/ada/m (") && told.ends_with(", line 1)"), "{told}");
    assert_eq!(line(&["chat"], &[home, ("LILY_MODEL", "~/other")]).unwrap(), "model: /home/ada/other (LILY_MODEL)");
    assert_eq!(line(&["chat", "--model", "/x"], &[home]), None);
    assert_eq!(line(&["plan", "/x"], &[home]), None);
    assert!(line(&["plan"], &[home]).is_some());
}

#[test]
fn what_is_wrong_in_a_file_is_named_with_its_line() {
    for (text, sentence) in [
        ("\nprot = 1", "2: no flag is called prot; is port meant?"),
        ("prefill_chunk = 1", "1: no flag is called prefill_chunk; is prefill-chunk meant?"),
        ("nonsense = 1", "1: no flag is called nonsense"),
        ("[srve]\nport = 1", "1: no command with settings is called srve; is serve meant?"),
        ("[man]\ndir = 'x'", "1: no command with settings is called man"),
        ("[serve]\n\nhots = 'x'", "3: serve has no flag hots; is host meant?"),
        ("[serve]\ntemperature = 1", "2: serve has no flag temperature"),
        ("[serve]\nport = 'x'", "2: --port: \"x\": invalid digit found in string"),
        ("[serve]\nport = 70000", "2: --port: \"70000\": 70000 is not in 0..=65535"),
        ("[serve]\nport = [1]", "2: --port: one value is wanted, not a list"),
        ("[serve]\nport = true", "2: --port: true is no value for it"),
        ("[run]\nno-think = 1", "2: --no-think: true or false is wanted"),
        ("precision = 'low'", "1: --precision: \"low\": one of exact, fast is wanted"),
        ("threads = 0", "1: --threads: \"0\": a whole number of at least 1 is wanted"),
        ("memory = '12X'", "1: --memory: \"12X\": a unit is one of K, M, G, T"),
        ("config = 'x'", "1: no flag is called config"),
    ] {
        assert_eq!(refusal(text), sentence, "{text}");
    }
}

#[test]
fn wrong_variables_are_named_and_those_of_other_commands_do_not_matter() {
    let error = load(&["serve"], "", &[("LILY_PORT", "x")]).err().unwrap().to_string();
    assert_eq!(error, "LILY_PORT: --port: \"x\": invalid digit found in string");
    assert!(load(&["run", "x"], "", &[("LILY_PORT", "x")]).is_ok());
}

#[test]
fn a_file_that_is_named_must_be_there_and_the_usual_one_need_not() {
    let args = |more: &[&str]| ["lily", "serve"].iter().chain(more).map(OsString::from).collect();
    assert!(
        load_from(args(&["--config", "/no/such.toml"]), &env(&[])).err().unwrap().to_string().contains("/no/such.toml")
    );
    assert!(load_from(args(&[]), &env(&[("LILY_CONFIG", "/no/such.toml")])).is_err());
    assert!(load_from(args(&[]), &env(&[("XDG_CONFIG_HOME", "/nowhere"), ("HOME", "/nowhere")])).is_ok());
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().to_str().unwrap();
    std::fs::create_dir_all(folder.path().join(".config/lily")).unwrap();
    std::fs::write(folder.path().join(".config/lily/config.toml"), "[serve]\nport = 5\n").unwrap();
    let Asked::Serve(flags) = load_from(args(&[]), &env(&[("HOME", home)])).unwrap().cli.command else { panic!() };
    assert_eq!(flags.port, 5);
    let elsewhere = [("HOME", home), ("XDG_CONFIG_HOME", "/nowhere")];
    let Asked::Serve(flags) = load_from(args(&[]), &env(&elsewhere)).unwrap().cli.command else { panic!() };
    assert_eq!(flags.port, 8080);
}

#[test]
fn every_command_is_known_here() {
    let program = Cli::command();
    for command in program.get_subcommands().map(Command::get_name) {
        let without = ["selftest", "config", "completions", "man"].contains(&command);
        let with = COMMANDS.contains(&command) || DESCRIBING.contains(&command);
        assert!(with != without, "{command}: does it take settings?");
    }
    for name in COMMANDS {
        assert!(flags(&program, name).count() > 2, "{name}");
    }
}

#[test]
fn the_settings_are_told_with_their_places_and_no_secret_is() {
    let config = file("threads = 2\n[serve]\nport = 9\n");
    let tell = |command| describe_from(Some(config.path()), command, &env(&[("LILY_HOST", "::1")])).unwrap();
    let place = config.path().display();
    assert_eq!(
        tell(None),
        format!(
            "file: {place}\nthreads  2    {place}, line 1 (chat, run, serve, bench)\nhost     ::1  LILY_HOST (serve)\n\
             port     9    {place}, line 3 (serve)\n"
        )
    );
    let all = tell(Some("serve"));
    assert!(
        all.contains("queue")
            && all.lines().any(|line| line.starts_with("context ") && line.ends_with("-     default")),
        "{all}"
    );
    assert!(describe_from(None, None, &env(&[])).unwrap().ends_with("nothing is set; every flag has its default\n"));
    assert!(is_secret(&Arg::new("api_key").long("api-key")));
    assert!(!is_secret(&Arg::new("x").long("max-tokens")));
}
