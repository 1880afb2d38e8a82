//! What is told before gigabytes come for nothing: models of other kinds, missing weight files, names that cannot be
//! written.

use std::fs;

use super::fake::{Answer, Asked, COMMIT, FakeHub, File};
use super::{CONFIG, REPO, Setting, WEIGHTS, bytes, files, proper, weights};

const INDEX: &str = "model.safetensors.index.json";

/// A hub with other files, and what it was asked for in the end.
fn refused(files: &[File]) -> (String, Vec<String>) {
    let hub = FakeHub::start(REPO, files, |_| Answer::Proper);
    let setting = Setting::new(&hub);
    let error = setting.error();
    assert!(!setting.repository().join("refs").exists() && !setting.repository().join("snapshots").exists());
    let last = |asked: Asked| asked.path.rsplit('/').next().unwrap_or_default().to_owned();
    (error, hub.transfers().into_iter().map(last).collect())
}

#[test]
fn another_kind_of_model_is_refused_before_a_weight_comes() {
    let mut files = files();
    let reason = "owner/name holds no model that Lily runs: config.json";
    for (config, words) in [
        (&br#"{"model_type": "llama"}"#[..], "`model_type`"),
        (b"{", "JSON"),
        (b"\xff\xfe", "UTF-8"),
        (&String::from_utf8_lossy(CONFIG).replace("\"affine\"", "\"mxfp4\"").into_bytes(), "mxfp4"),
    ] {
        files[0].bytes = config.to_vec();
        let (error, fetched) = refused(&files);
        assert!(error.starts_with(reason) && error.contains(words) && error.contains("`--any`"), "{error}");
        assert_eq!(fetched, ["config.json"]);
    }
    let hub = FakeHub::start(REPO, &files, |_| Answer::Proper);
    let mut setting = Setting::new(&hub);
    setting.any = true;
    let folder = setting.pull().unwrap();
    assert!(fs::read(folder.join(WEIGHTS)).unwrap() == weights().bytes);
    assert!(setting.heard("warning: Lily cannot run it: config.json"));
    // What is here is judged as well, or `run` would send people back to `pull`.
    setting.any = false;
    let error = setting.error();
    assert!(error.starts_with(reason) && !error.contains("fetch"), "{error}");
}

#[test]
fn an_index_of_files_that_are_not_there_is_told_before_a_weight_comes() {
    let index = |map: &str| File { name: INDEX, bytes: format!(r#"{{"weight_map": {map}}}"#).into_bytes(), lfs: false };
    let with = |map: &str| [files(), vec![index(map)]].concat();
    let map = r#"{"model.a": "model.safetensors", "model.b": "lost-2-of-2.safetensors", "mtp.c": "x.safetensors"}"#;
    let (error, fetched) = refused(&with(map));
    assert!(error.contains(r#"index.json names "lost-2-of-2.safetensors", which is not among"#), "{error}");
    assert_eq!(fetched, ["config.json", INDEX]);
    for (map, words) in [("7", "weight_map"), ("{}", "weight_map"), (r#"{"model.a": "../x"}"#, "../x")] {
        let (error, _) = refused(&with(map));
        assert!(error.contains(INDEX) && error.contains(words), "{error}");
    }
    // Only what the engine would open has to be there.
    let hub = FakeHub::start(REPO, &with(&map.replace("lost-2-of-2", "model")), |_| Answer::Proper);
    assert!(Setting::new(&hub).pull().unwrap().join(INDEX).exists());
    // Shards without an index are no model either.
    let mut files = files();
    files[2].name = "model-1-of-2.safetensors";
    assert!(refused(&files).0.contains("it has neither model.safetensors nor model.safetensors.index.json"));
}

#[test]
fn names_that_cannot_be_written_are_told_before_anything_comes() {
    let long: &'static str = Box::leak(format!("{}.json", "x".repeat(251)).into_boxed_str());
    let with = |more: &[&'static str]| {
        let more = more.iter().map(|&name| File { name, bytes: bytes(name.len()), lfs: false });
        files().into_iter().chain(more).collect::<Vec<_>>()
    };
    for (more, words) in [
        (&[long][..], "has 256 bytes, and the disk takes 255"),
        (&["a.json", "a.json/b"], "as a file and as the folder of \"a.json/b\""),
        (&["a", "b/c", "b"], "\"b\" as a file and as the folder of \"b/c\""),
    ] {
        let (error, fetched) = refused(&with(more));
        assert!(error.starts_with("owner/name: ") && error.contains(words), "{error}");
        assert!(fetched.is_empty(), "{fetched:?}");
    }
    let mut twice = with(&["a.json", "a.json"]);
    let hub = FakeHub::start(REPO, &twice, |_| Answer::Proper);
    Setting::new(&hub).pull().unwrap();
    assert_eq!(hub.transfers().len(), 4, "once is enough");
    twice[4].bytes.push(1);
    let (error, fetched) = refused(&twice);
    assert!(error.contains("two files by the name \"a.json\"") && fetched.is_empty(), "{error}");
    // The longest name that fits.
    let hub = FakeHub::start(REPO, &with(&[&long[1..]]), |_| Answer::Proper);
    assert!(Setting::new(&hub).pull().unwrap().join(&long[1..]).exists());
}

#[test]
fn a_revision_below_another_one_is_told_before_anything_comes() {
    for (first, second, taken, words) in
        [("a", "a/b/c", "a", "names another revision"), ("a/b/c", "a/b", "a/b", "is a folder of other revisions")]
    {
        let hub = proper();
        let mut setting = Setting::new(&hub);
        setting.revision = first;
        setting.pull().unwrap();
        let asked = hub.transfers().len();
        setting.revision = second;
        let refs = setting.repository().join("refs");
        let error = setting.error();
        assert!(error.starts_with(&format!("{}: this {words}", refs.join(taken).display())), "{error}");
        assert_eq!(hub.transfers().len(), asked);
        assert_eq!(fs::read_to_string(refs.join(first)).unwrap(), COMMIT);
        assert_eq!(fs::read_dir(refs.join("a").parent().unwrap()).unwrap().count(), 1);
        // The sentence says what helps.
        setting.revision = COMMIT;
        setting.pull().unwrap();
    }
    let hub = proper();
    let mut setting = Setting::new(&hub);
    setting.revision = Box::leak("v".repeat(256).into_boxed_str());
    assert!(setting.error().starts_with("--revision: a part of it has 256 bytes"));
    assert!(hub.transfers().is_empty());
    setting.revision = Box::leak("v".repeat(255).into_boxed_str());
    setting.pull().unwrap();
}
