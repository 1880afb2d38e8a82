//! Pulls from a hub on this machine that answers as badly as hubs and networks do.

mod early;
#[path = "../../tests/support/hub.rs"]
mod fake;

use std::cell::RefCell;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fake::{Answer, Asked, COMMIT, FakeHub, File};

use super::patience::Limits;
use super::{Disk, HubSettings, Report, Task};

const REPO: &str = "owner/name";
const WEIGHTS: &str = "model.safetensors";
const CONFIG: &[u8] = include_bytes!("../../../../models/lily-demo/config.json");

fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|at| (at.wrapping_mul(2_654_435_761) >> 11) as u8).collect()
}

fn files() -> Vec<File> {
    vec![
        File { name: "config.json", bytes: CONFIG.to_vec(), lfs: false },
        File { name: "tokenizer.json", bytes: bytes(3000), lfs: true },
        File { name: WEIGHTS, bytes: bytes(1_000_000), lfs: true },
        File { name: "picture.png", bytes: bytes(10), lfs: true },
    ]
}

fn weights() -> File {
    files().remove(2)
}

/// A pull into a folder of its own.
struct Setting {
    cache: tempfile::TempDir,
    settings: HubSettings,
    limits: Limits,
    revision: &'static str,
    verify: bool,
    any: bool,
    free: u64,
    notes: RefCell<Vec<String>>,
    /// Bytes present, by the report.
    done: RefCell<(u64, u64)>,
}

impl Setting {
    fn new(hub: &FakeHub) -> Self {
        let cache = tempfile::tempdir().unwrap();
        let settings = HubSettings {
            endpoint: hub.url.clone(),
            token: None,
            cache: cache.path().join("hub"),
            proxy: None,
            authorities: None,
        };
        let limits = Limits {
            failures: 4,
            first_wait: Duration::from_millis(1),
            stall: Duration::from_millis(300),
            progress: 1000,
            ..Limits::default()
        };
        let (notes, done) = (RefCell::default(), RefCell::default());
        Self { cache, settings, limits, revision: "main", verify: false, any: false, free: u64::MAX, notes, done }
    }

    fn pull(&self) -> anyhow::Result<PathBuf> {
        let task = Task {
            settings: &self.settings,
            repo: REPO,
            revision: self.revision,
            verify: self.verify,
            any: self.any,
            limits: &self.limits,
            disk: &|_: &Path| -> io::Result<Disk> { Ok(Disk { free: self.free, longest_name: 255 }) },
            report: self,
        };
        task.run()
    }

    fn error(&self) -> String {
        let error = format!("{:#}", self.pull().unwrap_err());
        assert!(!error.contains('\n'), "{error}");
        error
    }

    fn repository(&self) -> PathBuf {
        self.cache.path().join("hub/models--owner--name")
    }

    fn blob(&self, file: &File) -> PathBuf {
        self.repository().join("blobs").join(file.checksum())
    }

    fn part(&self, file: &File) -> PathBuf {
        self.repository().join("blobs").join(format!("{}.incomplete", file.checksum()))
    }

    fn leave_part(&self, bytes: &[u8]) {
        let part = self.part(&weights());
        fs::create_dir_all(part.parent().unwrap()).unwrap();
        fs::write(part, bytes).unwrap();
    }

    fn heard(&self, words: &str) -> bool {
        self.notes.borrow().iter().any(|note| note.contains(words))
    }

    /// Everything is there, byte for byte, where other tools look for it.
    fn assert_complete(&self, folder: &Path) {
        assert_eq!(folder, self.repository().join("snapshots").join(COMMIT));
        for file in files().iter().filter(|file| file.name != "picture.png") {
            let path = folder.join(file.name);
            assert!(fs::read(&path).unwrap() == file.bytes, "{}", file.name);
            assert_eq!(fs::read_link(&path).unwrap(), Path::new("../../blobs").join(file.checksum()));
        }
        let left = fs::read_dir(self.repository().join("blobs")).unwrap().count();
        assert_eq!(left, 3, "no blob but those of the files");
        let (done, total) = *self.done.borrow();
        assert_eq!(done, total, "the progress adds up");
    }
}

impl Report for Setting {
    fn note(&self, line: &str) {
        self.notes.borrow_mut().push(line.to_owned());
    }
    fn start(&self, here: u64, total: u64) {
        *self.done.borrow_mut() = (here, total);
    }
    fn file(&self, _: &str, _: u64) {}
    fn advance(&self, bytes: u64) {
        self.done.borrow_mut().0 += bytes;
    }
    fn lose(&self, bytes: u64) {
        self.done.borrow_mut().0 -= bytes;
    }
    fn end(&self) {}
}

/// A hub that answers properly but for the weights.
fn hub(weights: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> FakeHub {
    FakeHub::start(
        REPO,
        &files(),
        move |asked| {
            if asked.path.ends_with(WEIGHTS) { weights(asked) } else { Answer::Proper }
        },
    )
}

fn proper() -> FakeHub {
    hub(|_| Answer::Proper)
}

/// Starts of the ranges asked for of the weights.
fn ranges(hub: &FakeHub) -> Vec<Option<usize>> {
    hub.asked().into_iter().filter(|asked| asked.path.ends_with(WEIGHTS)).map(|asked| asked.from).collect()
}

#[test]
fn a_pull_brings_the_engines_files_and_a_second_one_nothing() {
    let hub = proper();
    let setting = Setting::new(&hub);
    let folder = setting.pull().unwrap();
    setting.assert_complete(&folder);
    assert!(!folder.join("picture.png").exists() && setting.heard("(1): \"picture.png\""));
    assert_eq!(fs::read_to_string(setting.repository().join("refs/main")).unwrap(), COMMIT);
    assert_eq!(hub.transfers().len(), 3);
    assert_eq!(setting.pull().unwrap(), folder);
    assert_eq!(hub.transfers().len(), 3);
    assert!(setting.heard("nothing to transfer"));
}

#[test]
fn an_interrupted_file_is_continued_where_it_was() {
    let hub = proper();
    let setting = Setting::new(&hub);
    setting.leave_part(&weights().bytes[..123_456]);
    setting.assert_complete(&setting.pull().unwrap());
    assert_eq!(ranges(&hub), [Some(123_456)]);
}

#[test]
fn a_file_whose_last_byte_came_is_only_checked() {
    let hub = proper();
    let setting = Setting::new(&hub);
    setting.leave_part(&weights().bytes);
    setting.assert_complete(&setting.pull().unwrap());
    assert_eq!(ranges(&hub), []);
}

#[test]
fn a_server_without_ranges_starts_the_file_anew() {
    let hub = hub(|_| Answer::NoRanges);
    let setting = Setting::new(&hub);
    setting.leave_part(&weights().bytes[..5000]);
    setting.assert_complete(&setting.pull().unwrap());
    assert_eq!(ranges(&hub), [Some(5000)]);
}

#[test]
fn a_damaged_or_foreign_part_is_thrown_away() {
    for part in [vec![0; 5000], vec![0; 1_000_000], vec![0; 2_000_000]] {
        let hub = proper();
        let setting = Setting::new(&hub);
        setting.leave_part(&part);
        setting.assert_complete(&setting.pull().unwrap());
        assert_eq!(ranges(&hub).last(), Some(&None), "at last the whole file");
        assert_eq!(setting.heard("of an earlier request were damaged"), part.len() <= 1_000_000);
    }
}

#[test]
fn wrong_bytes_get_no_name() {
    let hub = hub(|_| Answer::Corrupt);
    let setting = Setting::new(&hub);
    let error = setting.error();
    assert!(error.starts_with("model.safetensors: ") && error.contains("checksum"), "{error}");
    assert!(!setting.blob(&weights()).exists() && !setting.repository().join("refs").exists());
    assert_eq!(fs::metadata(setting.part(&weights())).unwrap().len(), 0);
    assert_eq!(ranges(&hub).len(), 1);
}

#[test]
fn a_page_in_place_of_a_file_is_told_before_a_byte_of_it_is_written() {
    let page = || Answer::Text("<html>login</html>".to_owned());
    let hub = hub(move |asked| if asked.nth == 0 { page() } else { Answer::Proper });
    let setting = Setting::new(&hub);
    setting.assert_complete(&setting.pull().unwrap());
    assert!(setting.heard("the server sent 18 bytes where "));
}

#[test]
fn small_files_are_checked_too() {
    let hub = FakeHub::start(REPO, &files(), |asked| {
        if asked.path.ends_with("config.json") { Answer::Corrupt } else { Answer::Proper }
    });
    assert!(Setting::new(&hub).error().starts_with("config.json: "));
}

#[test]
fn cut_connections_are_picked_up_and_progress_renews_patience() {
    // More cuts than failures in a row are borne.
    let hub = hub(|asked| if asked.nth < 9 { Answer::Cut(100_000) } else { Answer::Proper });
    let setting = Setting::new(&hub);
    setting.assert_complete(&setting.pull().unwrap());
    let want: Vec<_> = (0..10).map(|nth| (nth > 0).then_some(nth * 100_000)).collect();
    assert_eq!(ranges(&hub), want);
}

#[test]
fn a_line_that_brings_nothing_is_given_up_and_what_came_stays() {
    let hub = hub(|asked| if asked.nth == 0 { Answer::Cut(70_000) } else { Answer::Cut(0) });
    let setting = Setting::new(&hub);
    let error = setting.error();
    assert!(error.contains("the connection was cut") && error.contains("gave up after 5 attempts"), "{error}");
    assert_eq!(fs::read(setting.part(&weights())).unwrap(), weights().bytes[..70_000]);
}

#[test]
fn a_stalled_connection_is_left() {
    let hub = hub(|asked| if asked.nth == 0 { Answer::Stall(50_000) } else { Answer::Proper });
    let setting = Setting::new(&hub);
    setting.assert_complete(&setting.pull().unwrap());
    assert!(setting.heard("the connection stalled"), "{:?}", setting.notes);
    assert_eq!(ranges(&hub), [None, Some(50_000)]);
}

#[test]
fn a_busy_server_is_asked_again_when_it_says() {
    let hub = hub(|asked| match asked.nth {
        0 => Answer::Status(429, vec![("Retry-After", "1".into())]),
        1 => Answer::Status(503, Vec::new()),
        _ => Answer::Proper,
    });
    let setting = Setting::new(&hub);
    let start = Instant::now();
    setting.assert_complete(&setting.pull().unwrap());
    assert!(start.elapsed() >= Duration::from_secs(1));
    assert!(setting.heard("429") && setting.heard("503"));

    let hub = FakeHub::start(REPO, &files(), |_| Answer::Status(429, vec![("Retry-After", "86400".into())]));
    let error = Setting::new(&hub).error();
    assert!(error.contains("429") && error.contains("86400 s"), "{error}");
}

#[test]
fn redirects_are_followed_and_the_token_stays() {
    let storage = FakeHub::start(REPO, &files(), |_| Answer::Proper);
    let away = storage.url.clone();
    let hub = FakeHub::start(REPO, &files(), move |asked| {
        let location = match asked.path.rsplit('/').next() {
            Some(name) if name == WEIGHTS => format!("{away}/storage/{name}"),
            Some("config.json") if !asked.path.starts_with("/storage") => "/storage/config.json".into(),
            _ => return Answer::Proper,
        };
        Answer::Status(302, vec![("Location", location)])
    });
    let mut setting = Setting::new(&hub);
    setting.settings.token = Some("hf_secret".into());
    setting.leave_part(&weights().bytes[..777]);
    setting.assert_complete(&setting.pull().unwrap());
    assert!(hub.asked().iter().all(|asked| asked.authorization.as_deref() == Some("Bearer hf_secret")));
    let there = storage.asked();
    assert_eq!(there.len(), 1);
    assert_eq!((there[0].from, &there[0].authorization), (Some(777), &None));
}

#[test]
fn a_storage_that_refuses_is_asked_by_a_new_address() {
    let storage = FakeHub::start(REPO, &files(), |asked| match asked.nth {
        0 => Answer::Status(403, Vec::new()),
        _ => Answer::Proper,
    });
    let away = format!("{}/storage/{WEIGHTS}", storage.url);
    let hub = hub(move |_| Answer::Status(302, vec![("Location", away.clone())]));
    let setting = Setting::new(&hub);
    setting.assert_complete(&setting.pull().unwrap());
    assert_eq!(ranges(&hub).len(), 2);
}

#[test]
fn a_redirect_in_a_circle_ends() {
    let hub = hub(|asked| Answer::Status(302, vec![("Location", asked.path.clone())]));
    assert!(Setting::new(&hub).error().contains("redirects without end"));
}

#[test]
fn refusals_say_what_to_do() {
    for (status, code, token, words) in [
        (401, "", false, "or set HF_TOKEN"),
        (401, "GatedRepo", false, "owner/name is gated"),
        (401, "", true, "check HF_TOKEN"),
        (403, "", false, "then set HF_TOKEN"),
        (403, "GatedRepo", true, "this account has no access"),
        (404, "", false, "no such repository"),
        (404, "RevisionNotFound", false, "owner/name has no revision main"),
        (418, "", false, "the Hub answered 418"),
    ] {
        let hub =
            FakeHub::start(REPO, &files(), move |_| Answer::Status(status, vec![("X-Error-Code", code.to_owned())]));
        let mut setting = Setting::new(&hub);
        setting.settings.token = token.then(|| "hf_secret".to_owned());
        let error = setting.error();
        assert!(error.contains(words) && error.contains(REPO) && !error.contains("hf_secret"), "{error}");
        assert_eq!(hub.asked().len(), 1, "{error}");
    }
}

#[test]
fn what_is_no_list_of_files_is_one_sentence() {
    for text in ["<html>", "{}", r#"{"sha": "../../../x", "siblings": []}"#] {
        let hub = FakeHub::start(REPO, &files(), move |_| Answer::Text(text.into()));
        assert!(Setting::new(&hub).error().contains("did not answer with the files of a model"));
    }
}

#[test]
fn a_hub_that_is_not_there_is_told_at_once() {
    let mut setting = Setting::new(&proper());
    let gone = setting.settings.endpoint.clone();
    for endpoint in [gone.as_str(), "http://no-such-host.invalid"] {
        setting.settings.endpoint = endpoint.to_owned();
        let error = setting.error();
        assert!(error.starts_with(&format!("{endpoint} cannot be reached: ")), "{error}");
    }
    // One that was there a moment ago may come back.
    let away = format!("{gone}/storage/{WEIGHTS}");
    let hub = hub(move |asked| match asked.nth {
        0 => Answer::Status(302, vec![("Location", away.clone())]),
        _ => Answer::Proper,
    });
    let setting = Setting::new(&hub);
    setting.assert_complete(&setting.pull().unwrap());
    assert!(setting.heard("onnection refused"), "{:?}", setting.notes);
}

#[test]
fn names_that_lead_out_of_the_folder_stop_everything() {
    let mut files = files();
    files.push(File { name: "../../../escaped.json", bytes: bytes(9), lfs: false });
    let hub = FakeHub::start(REPO, &files, |_| Answer::Proper);
    let setting = Setting::new(&hub);
    assert!(setting.error().contains("leads out of the folder"));
    assert_eq!(hub.transfers().len(), 0);
    assert!(!setting.settings.cache.exists());
}

#[test]
fn a_full_disk_is_told_before_a_weight_comes() {
    let hub = proper();
    let mut setting = Setting::new(&hub);
    setting.free = 1_000_000;
    let error = setting.error();
    let place = setting.repository().display().to_string();
    assert!(error.contains("1.0 MB are still to be downloaded") && error.contains(&place), "{error}");
    assert_eq!(ranges(&hub), []);
    // What is there already needs no room.
    setting.leave_part(&weights().bytes[..10_000]);
    setting.assert_complete(&setting.pull().unwrap());
}

#[test]
fn two_pulls_at_once_share_the_work() {
    let hub = hub(|_| Answer::Slow(Duration::from_millis(1)));
    let setting = Setting::new(&hub);
    let cache = setting.settings.cache.clone();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut other = Setting::new(&hub);
            other.settings.cache = cache;
            other.pull().map(|folder| (folder, other.heard("another pull is at it"))).unwrap()
        });
        let folder = setting.pull().unwrap();
        let (there, waited) = other.join().unwrap();
        assert_eq!(there, folder);
        assert!(waited || setting.heard("another pull is at it"));
    });
    setting.assert_complete(&setting.pull().unwrap());
    assert_eq!(ranges(&hub).len(), 1);
}

#[test]
fn verify_finds_bytes_that_changed() {
    let hub = proper();
    let mut setting = Setting::new(&hub);
    setting.pull().unwrap();
    let blob = setting.blob(&weights());
    fs::write(&blob, vec![7; 1_000_000]).unwrap();
    setting.pull().unwrap();
    assert_eq!(ranges(&hub).len(), 1, "a pull looks at lengths only");
    setting.verify = true;
    setting.assert_complete(&setting.pull().unwrap());
    assert!(ranges(&hub).len() == 2 && setting.heard("its bytes changed"));
}

#[test]
fn a_name_moves_only_to_a_complete_snapshot() {
    let hub = hub(|asked| if asked.nth < 5 { Answer::Cut(0) } else { Answer::Proper });
    let setting = Setting::new(&hub);
    let name = setting.repository().join("refs/main");
    fs::create_dir_all(name.parent().unwrap()).unwrap();
    fs::write(&name, "an older commit").unwrap();
    setting.error();
    assert_eq!(fs::read_to_string(&name).unwrap(), "an older commit");
    setting.assert_complete(&setting.pull().unwrap());
    assert_eq!(fs::read_to_string(&name).unwrap(), COMMIT);
}

#[test]
fn a_revision_is_a_branch_or_a_commit() {
    let hub = proper();
    let mut setting = Setting::new(&hub);
    setting.revision = "refs/pr/1";
    setting.pull().unwrap();
    assert!(hub.asked()[0].path.ends_with("/revision/refs%2Fpr%2F1?blobs=true"));
    assert_eq!(fs::read_to_string(setting.repository().join("refs/refs/pr/1")).unwrap(), COMMIT);
    setting.revision = COMMIT;
    setting.assert_complete(&setting.pull().unwrap());
    assert!(!setting.repository().join("refs").join(COMMIT).exists());
}
