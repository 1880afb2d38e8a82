//! Settings from the environment and the configuration file, as the program's users meet them.

use std::fs;

use super::support::lily;
use super::{run, stderr, stdout};

#[test]
fn settings_reach_a_command_and_are_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("config.toml");
    fs::write(&file, "model = 'lily-demo'\nmax-tokens = 1\n[run]\njson = true\n").expect("writes");
    let file = file.to_str().expect("UTF-8");
    let output = lily(&["run", "--config", file, "Hello"]).output().expect("starts");
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stderr(&output), format!("lily: model: lily-demo ({file}, line 1)\n"));
    let report: serde_json::Value = serde_json::from_str(stdout(&output)).expect("JSON");
    assert_eq!(report["usage"]["completion_tokens"], 1);
    let output = lily(&["run", "--config", file, "Hello"]).env("LILY_MAX_TOKENS", "2").output().expect("starts");
    let report: serde_json::Value = serde_json::from_str(stdout(&output)).expect("JSON");
    assert_eq!(report["usage"]["completion_tokens"], 2);
    let output = lily(&["config", "--config", file]).env("LILY_MAX_TOKENS", "2").output().expect("starts");
    let text = stdout(&output);
    assert!(text.starts_with(&format!("file: {file}\n")) && text.contains("LILY_MAX_TOKENS (chat, run)"), "{text}");
}

#[test]
fn keys_are_not_printed() {
    let output = lily(&["config", "serve"]).env("LILY_API_KEY", "a-secret-of-mine").output().expect("starts");
    assert!(stdout(&output).contains("(set, not shown)"), "{}", stdout(&output));
    assert!(!stdout(&output).contains("secret") && !stderr(&output).contains("secret"));
}

#[test]
fn mistakes_are_one_sentence() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("config.toml");
    fs::write(&file, "[serve]\nprot = 8080\n").expect("writes");
    let file = file.to_str().expect("UTF-8");
    for command in ["config", "run"] {
        let output = run(&[command, "--config", file]);
        assert_eq!((output.status.code(), stdout(&output)), (Some(1), ""));
        assert_eq!(stderr(&output), format!("lily: {file}, line 2: serve has no flag prot; is port meant?\n"));
    }
    let output = run(&["config", "--config", "/no/such/file"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).starts_with("lily: /no/such/file: "), "{}", stderr(&output));
    // What only describes the program works all the same.
    assert!(run(&["completions", "bash", "--config", file]).status.success());
}
