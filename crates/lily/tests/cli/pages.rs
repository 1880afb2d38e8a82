//! Completions and manual pages: whole, and in order as far as the shells and typesetters at hand can tell.

use std::io::Write;
use std::process::{Command, Stdio};

use super::{run, stderr, stdout};

/// The commands that `lily help` lists.
fn commands() -> Vec<String> {
    let output = run(&["help"]);
    let text = stdout(&output);
    let list = text.split("Commands:\n").nth(1).and_then(|rest| rest.split("\n\n").next()).expect("a list");
    let first =
        |line: &str| line.strip_prefix("  ")?.split(' ').next().filter(|name| !name.is_empty()).map(String::from);
    let names: Vec<String> = list.lines().filter_map(first).collect();
    assert!(names.len() > 5 && names.contains(&"pull".into()), "{names:?}");
    names
}

/// What a checker says of a text on its stdin; nothing if there is no such program.
fn complaints(program: &str, args: &[&str], text: &str) -> Option<String> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().ok()?;
    child.stdin.take().expect("piped").write_all(text.as_bytes()).expect("writes");
    let output = child.wait_with_output().expect("ends");
    let clean = output.status.success() && output.stderr.is_empty();
    Some(if clean { String::new() } else { format!("{}{}", stdout(&output), stderr(&output)) })
}

#[test]
fn completions_know_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = run(&["completions", shell]);
        assert!(output.status.success() && stderr(&output).is_empty(), "{}", stderr(&output));
        for name in commands() {
            assert!(stdout(&output).contains(&name), "{shell}: {name}");
        }
        assert!(stdout(&output).contains("prompt-tokens"), "{shell}");
    }
    assert_eq!(run(&["completions", "csh"]).status.code(), Some(2));
    for shell in ["bash", "zsh", "fish"] {
        match complaints(shell, &["-n"], stdout(&run(&["completions", shell]))) {
            Some(text) => assert_eq!(text, "", "{shell}"),
            None => println!("SKIP completions_know_every_command: there is no {shell} to check its script"),
        }
    }
}

#[test]
fn manual_pages_know_every_command() {
    let output = run(&["man"]);
    assert!(output.status.success() && stdout(&output).contains(".TH"), "{}", stderr(&output));
    let folder = tempfile::tempdir().expect("a folder");
    let written = run(&["man", "--dir", folder.path().to_str().expect("UTF-8")]);
    assert!(written.status.success() && stdout(&written).is_empty(), "{}", stderr(&written));
    let mut pages = vec![stdout(&output).to_owned()];
    assert!(!pages[0].contains("help(1)"), "there is no such page");
    for name in commands().iter().filter(|name| *name != "help") {
        assert!(stdout(&output).contains(name), "{name}");
        let page = stdout(&run(&["man", name])).to_owned();
        assert!(page.contains(&format!("lily {name}")) || page.contains(&format!("lily\\-{name}")), "{page}");
        assert_eq!(std::fs::read_to_string(folder.path().join(format!("lily-{name}.1"))).expect("written"), page);
        let title = page.lines().find(|line| line.starts_with(".TH ")).expect("a title");
        assert!(title.starts_with(&format!(".TH lily-{name} 1 ")) && title.contains("\"lily "), "{title}");
        pages.push(page);
    }
    for page in pages {
        let lint = complaints("mandoc", &["-T", "lint", "-W", "error"], &page);
        match lint.or_else(|| complaints("groff", &["-man", "-Tutf8", "-ww", "-z"], &page)) {
            Some(text) => assert_eq!(text, "", "{page}"),
            None => return println!("SKIP manual_pages_know_every_command: there is no mandoc or groff to check them"),
        }
    }
    let unknown = run(&["man", "nope"]);
    assert_eq!(
        (unknown.status.code(), stderr(&unknown)),
        (Some(1), "lily: there is no command nope (see `lily help`)\n")
    );
    // A folder is made; below a file there can be none.
    let folder = tempfile::tempdir().unwrap();
    let (new, file) = (folder.path().join("new/man1"), folder.path().join("file"));
    assert_eq!(run(&["man", "--dir", new.to_str().unwrap()]).status.code(), Some(0));
    assert!(new.join("lily.1").exists());
    std::fs::write(&file, "").unwrap();
    assert_eq!(run(&["man", "--dir", file.join("man1").to_str().unwrap()]).status.code(), Some(1));
}
