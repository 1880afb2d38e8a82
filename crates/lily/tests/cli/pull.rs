//! `lily pull` as its users run it, from a hub on this machine, and what other commands then find.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::hub::{Answer, FakeHub, File};
use super::{FRANCE, lily, signal, stderr, stdout};

const REPO: &str = "owner/name";
const WEIGHTS: &str = "model.safetensors";

/// The built-in model as a repository.
fn demo() -> Vec<File> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/lily-demo");
    let names = ["config.json", "generation_config.json", "tokenizer_config.json", "chat_template.jinja"];
    let small = names.map(|name| (name, false));
    let large = [("tokenizer.json", true), (WEIGHTS, true)];
    let file = |(name, lfs)| File { name, bytes: fs::read(folder.join(name)).expect("reads"), lfs };
    small.into_iter().chain(large).map(file).collect()
}

fn weights() -> File {
    demo().pop().expect("the last one")
}

/// The program with this hub and this cache, straight through.
fn with_hub(hub: &FakeHub, home: &Path, args: &[&str]) -> Command {
    let mut command = lily(args);
    command.env("HF_ENDPOINT", &hub.url).env("HF_HOME", home).env_remove("HF_HUB_CACHE").env_remove("HF_TOKEN");
    for name in [
        "ALL_PROXY",
        "all_proxy",
        "HTTPS_PROXY",
        "https_proxy",
        "HTTP_PROXY",
        "http_proxy",
        "HF_TOKEN_PATH",
        "SSL_CERT_FILE",
    ] {
        command.env_remove(name);
    }
    command
}

fn part_of(home: &Path, file: &File) -> PathBuf {
    home.join("hub/models--owner--name/blobs").join(format!("{}.incomplete", file.checksum()))
}

#[test]
fn a_pulled_model_answers_by_its_name() {
    let hub = FakeHub::start(REPO, &demo(), |_| Answer::Proper);
    let home = tempfile::tempdir().expect("a folder");
    let ask = ["run", "--model", REPO, "--no-think", "--temperature", "0", FRANCE];
    let early = with_hub(&hub, home.path(), &ask).output().expect("starts");
    assert_eq!(early.status.code(), Some(1));
    assert!(stderr(&early).contains("`lily pull owner/name`"), "{}", stderr(&early));

    let output = with_hub(&hub, home.path(), &["pull", REPO]).output().expect("starts");
    assert!(output.status.success(), "{}", stderr(&output));
    let folder = Path::new(stdout(&output).trim_end());
    assert!(folder.join("config.json").is_file() && stdout(&output).lines().count() == 1, "{}", stdout(&output));
    let notes = stderr(&output);
    assert!(notes.lines().all(|line| line.starts_with("lily: ")) && !notes.contains('\x1b'), "{notes}");
    assert!(notes.contains("model.safetensors (") && notes.contains("`lily chat --model owner/name`"), "{notes}");

    let answer = with_hub(&hub, home.path(), &ask).output().expect("starts");
    assert!(stdout(&answer).contains("Paris"), "{}", stderr(&answer));
    let transfers = hub.transfers().len();
    let again = with_hub(&hub, home.path(), &["pull", REPO]).output().expect("starts");
    assert_eq!((stdout(&again), hub.transfers().len()), (stdout(&output), transfers));
    assert!(stderr(&again).contains("nothing to transfer"), "{}", stderr(&again));
}

#[test]
fn a_pull_that_was_stopped_goes_on() {
    for (name, code, last_words) in [("-INT", Some(130), true), ("-TERM", Some(143), true), ("-KILL", None, false)] {
        let hub = FakeHub::start(REPO, &demo(), move |asked| {
            if asked.path.ends_with(WEIGHTS) && asked.nth == 0 {
                Answer::Slow(Duration::from_millis(1))
            } else {
                Answer::Proper
            }
        });
        let home = tempfile::tempdir().expect("a folder");
        let child = with_hub(&hub, home.path(), &["pull", REPO]).spawn().expect("starts");
        let part = part_of(home.path(), &weights());
        let start = Instant::now();
        while fs::metadata(&part).map_or(0, |found| found.len()) < 100_000 {
            assert!(start.elapsed() < Duration::from_secs(20), "nothing comes");
            std::thread::sleep(Duration::from_millis(5));
        }
        signal(&child, name);
        let stopped = child.wait_with_output().expect("ends");
        assert_eq!(stopped.status.code(), code, "{}", stderr(&stopped));
        assert_eq!(stderr(&stopped).ends_with("goes on where it was\n"), last_words, "{}", stderr(&stopped));
        assert_eq!(stdout(&stopped), "");
        let came = fs::metadata(&part).expect("kept").len();
        assert!(came >= 100_000 && came < weights().bytes.len() as u64);

        let output = with_hub(&hub, home.path(), &["pull", REPO]).output().expect("starts");
        assert!(output.status.success(), "{}", stderr(&output));
        let last = hub.transfers().pop().expect("asked");
        assert!(last.path.ends_with(WEIGHTS) && last.from == Some(came as usize), "{last:?}");
        let folder = Path::new(stdout(&output).trim_end());
        for file in demo() {
            assert!(fs::read(folder.join(file.name)).expect("there") == file.bytes, "{}", file.name);
        }
        assert!(!part.exists());
    }
}

#[test]
fn a_token_from_the_file_is_sent_and_a_refusal_is_one_sentence() {
    let hub = FakeHub::start(REPO, &demo(), |asked| match asked.authorization {
        Some(_) => Answer::Status(403, vec![("X-Error-Code", "GatedRepo".into())]),
        None => Answer::Status(401, Vec::new()),
    });
    let home = tempfile::tempdir().expect("a folder");
    let refusal = || {
        let output = with_hub(&hub, home.path(), &["pull", REPO]).output().expect("starts");
        assert_eq!((output.status.code(), stdout(&output)), (Some(1), ""));
        let complaint = stderr(&output).to_owned();
        assert!(complaint.lines().count() == 1 && complaint.starts_with("lily: owner/name"), "{complaint}");
        complaint
    };
    assert!(refusal().contains("set HF_TOKEN"));
    fs::write(home.path().join("token"), "hf_secret\n").expect("writes");
    let complaint = refusal();
    assert!(complaint.contains("this account has no access") && !complaint.contains("hf_secret"), "{complaint}");
    assert_eq!(hub.asked().last().and_then(|asked| asked.authorization.clone()).as_deref(), Some("Bearer hf_secret"));
}

#[test]
fn names_and_addresses_are_checked() {
    let hub = FakeHub::start(REPO, &[], |_| Answer::Proper);
    let home = tempfile::tempdir().expect("a folder");
    for args in [&["pull", "../x"][..], &["pull", "name"], &["pull", "a/b/c"], &["pull", "--revision", "../x"]] {
        let output = with_hub(&hub, home.path(), args).output().expect("starts");
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
    }
    let output = with_hub(&hub, home.path(), &["pull"]).env("HF_ENDPOINT", "hub.example").output().expect("starts");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).starts_with("lily: HF_ENDPOINT is \"hub.example\""), "{}", stderr(&output));
    assert!(hub.asked().is_empty());
    let empty = with_hub(&hub, home.path(), &["pull", REPO]).output().expect("starts");
    assert!(stderr(&empty).contains("no model that Lily reads: it has no config.json"), "{}", stderr(&empty));
}

#[test]
fn a_model_that_cannot_be_run_is_not_done() {
    let demo_with = |name: &'static str, text: &str| {
        let rest = demo().into_iter().filter(|file| file.name != name);
        rest.chain([File { name, bytes: text.as_bytes().to_vec(), lfs: false }]).collect::<Vec<_>>()
    };
    let index = "model.safetensors.index.json";
    let elsewhere = r#"{"weight_map": {"language_model.model.nowhere.weight": "model.safetensors"}}"#;
    for (files, words, transfers) in [
        (demo_with("config.json", r#"{"model_type": "llama"}"#), "`model_type`", 1),
        (demo_with(index, r#"{"weight_map": {"a": "b.safetensors"}}"#), r#"index.json names "b.safetensors""#, 2),
        // Only the weights themselves can tell that they contradict their index.
        (demo_with(index, elsewhere), "places tensor language_model.model.nowhere.weight in", 7),
    ] {
        let hub = FakeHub::start(REPO, &files, |_| Answer::Proper);
        let home = tempfile::tempdir().expect("a folder");
        let output = with_hub(&hub, home.path(), &["pull", REPO]).output().expect("starts");
        assert_eq!((output.status.code(), stdout(&output), hub.transfers().len()), (Some(1), "", transfers));
        let last = stderr(&output).lines().last().unwrap_or_default();
        assert!(last.starts_with("lily: owner/name ") && last.contains(words), "{last}");
        let forced = with_hub(&hub, home.path(), &["pull", "--any", REPO]).output().expect("starts");
        assert!(forced.status.success() && stdout(&forced).lines().count() == 1, "{}", stderr(&forced));
        assert!(stderr(&forced).contains("lily: warning: "), "{}", stderr(&forced));
        assert_eq!(hub.transfers().len(), files.len());
    }
}

#[test]
fn a_home_with_a_tilde_is_found() {
    let hub = FakeHub::start(REPO, &demo(), |_| Answer::Proper);
    let home = tempfile::tempdir().expect("a folder");
    let mut pull = with_hub(&hub, Path::new("~/hf"), &["pull", REPO]);
    let output = pull.env("HOME", home.path()).current_dir(home.path()).output().expect("starts");
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(Path::new(stdout(&output)).starts_with(home.path().join("hf/hub")), "{}", stdout(&output));
    assert!(!home.path().join("~").exists());
}
