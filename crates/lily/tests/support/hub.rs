//! A Hugging Face Hub of one repository on this machine, for tests. It answers properly, or as badly as the test wants.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ring::digest;

/// The commit that every revision is.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A file of the repository.
#[derive(Clone)]
pub struct File {
    pub name: &'static str,
    pub bytes: Vec<u8>,
    /// In large file storage: known by SHA-256 and not by git's SHA-1.
    pub lfs: bool,
}

impl File {
    /// Name of the blob in the cache.
    pub fn checksum(&self) -> String {
        let mut hash = digest::Context::new(if self.lfs { &digest::SHA256 } else { &digest::SHA1_FOR_LEGACY_USE_ONLY });
        if !self.lfs {
            hash.update(format!("blob {}\0", self.bytes.len()).as_bytes());
        }
        hash.update(&self.bytes);
        hash.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// One request.
#[derive(Clone, Debug)]
pub struct Asked {
    pub path: String,
    /// Start of the range, if one was asked for.
    pub from: Option<usize>,
    pub authorization: Option<String>,
    /// How often the path was asked for before.
    pub nth: usize,
}

impl Asked {
    /// Whether the bytes of a file were asked for, and not the list.
    pub fn is_file(&self) -> bool {
        !self.path.starts_with("/api/")
    }
}

/// What comes back.
pub enum Answer {
    Proper,
    /// The whole file, whatever range was asked for.
    NoRanges,
    /// A status with headers and without a body.
    Status(u16, Vec<(&'static str, String)>),
    /// The connection ends after so many bytes of the body.
    Cut(usize),
    /// Nothing more comes after so many bytes.
    Stall(usize),
    /// Right in length, wrong in content.
    Corrupt,
    /// Bytes in small pieces, with this pause between them.
    Slow(Duration),
    /// A body that is not what was asked for.
    Text(String),
}

type Behaviour = dyn Fn(&Asked) -> Answer + Send + Sync;

struct Shared {
    repo: String,
    files: Vec<File>,
    behave: Box<Behaviour>,
    asked: Mutex<Vec<Asked>>,
    stop: AtomicBool,
}

/// The server; it stops when dropped.
pub struct FakeHub {
    pub url: String,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

impl FakeHub {
    pub fn start(repo: &str, files: &[File], behave: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let shared = Arc::new(Shared {
            repo: repo.to_owned(),
            files: files.to_vec(),
            behave: Box::new(behave),
            asked: Mutex::default(),
            stop: AtomicBool::new(false),
        });
        let served = Arc::clone(&shared);
        let accepting = thread::spawn(move || {
            for stream in listener.incoming() {
                if served.stop.load(Ordering::SeqCst) {
                    break;
                }
                let (Ok(stream), served) = (stream, Arc::clone(&served)) else { continue };
                // A client that leaves early is for the test to judge.
                thread::spawn(move || drop(answer(stream, &served)));
            }
        });
        Self { url, shared, accepting: Some(accepting) }
    }

    /// Every request so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.shared.asked.lock().expect("log").clone()
    }

    /// Every request for the bytes of a file.
    pub fn transfers(&self) -> Vec<Asked> {
        self.asked().into_iter().filter(Asked::is_file).collect()
    }
}

impl Drop for FakeHub {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.url.trim_start_matches("http://"));
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

fn answer(mut stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    let mut asked =
        Asked { path: first.split(' ').nth(1).unwrap_or_default().to_owned(), from: None, authorization: None, nth: 0 };
    for line in lines {
        let line = line?;
        match line.split_once(": ") {
            Some((name, value)) if name.eq_ignore_ascii_case("range") => {
                asked.from = value.strip_prefix("bytes=").and_then(|range| range.strip_suffix('-')?.parse().ok());
            }
            Some((name, value)) if name.eq_ignore_ascii_case("authorization") => {
                asked.authorization = Some(value.to_owned());
            }
            Some(_) => {}
            None => break,
        }
    }
    {
        let mut log = shared.asked.lock().expect("log");
        asked.nth = log.iter().filter(|earlier| earlier.path == asked.path).count();
        log.push(asked.clone());
    }
    send(&mut stream, shared, &asked)
}

fn send(stream: &mut TcpStream, shared: &Shared, asked: &Asked) -> std::io::Result<()> {
    let answer = (shared.behave)(asked);
    if let Answer::Status(status, headers) = &answer {
        return head(stream, *status, 0, headers);
    }
    let listing = format!("/api/models/{}/revision/", shared.repo);
    let whole = if let Answer::Text(text) = &answer {
        text.clone().into_bytes()
    } else if asked.path.starts_with(&listing) {
        list(&shared.files).into_bytes()
    } else {
        let resolved = format!("/{}/resolve/{COMMIT}/", shared.repo);
        let name = asked.path.strip_prefix(&resolved).or_else(|| asked.path.strip_prefix("/storage/"));
        match shared.files.iter().find(|file| Some(file.name) == name) {
            Some(file) => file.bytes.clone(),
            None => return head(stream, 404, 0, &[]),
        }
    };
    let from = asked.from.filter(|_| !matches!(answer, Answer::NoRanges));
    let total = whole.len();
    let Some(body) = whole.get(from.unwrap_or(0)..) else { return head(stream, 416, 0, &[]) };
    let range = from.map(|from| ("Content-Range", format!("bytes {from}-{}/{total}", total - 1)));
    let mut body = body.to_vec();
    head(stream, if from.is_some() { 206 } else { 200 }, body.len(), range.as_slice())?;
    match answer {
        Answer::Cut(after) => body.truncate(after),
        Answer::Corrupt => body.iter_mut().for_each(|byte| *byte ^= 1),
        Answer::Stall(after) => {
            stream.write_all(&body[..after])?;
            while !shared.stop.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(5));
            }
            return Ok(());
        }
        Answer::Slow(pause) => {
            for piece in body.chunks(4096) {
                stream.write_all(piece)?;
                thread::sleep(pause);
            }
            return Ok(());
        }
        Answer::Proper | Answer::NoRanges | Answer::Text(_) | Answer::Status(..) => {}
    }
    stream.write_all(&body)
}

fn head(stream: &mut TcpStream, status: u16, length: usize, headers: &[(&str, String)]) -> std::io::Result<()> {
    let mut text = format!("HTTP/1.1 {status} x\r\nConnection: close\r\nContent-Length: {length}\r\n");
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    stream.write_all(format!("{text}\r\n").as_bytes())
}

/// As the Hub lists a revision with `?blobs=true`.
fn list(files: &[File]) -> String {
    let siblings: Vec<serde_json::Value> = files
        .iter()
        .map(|file| {
            let (size, checksum) = (file.bytes.len(), file.checksum());
            let git = "f".repeat(40);
            if file.lfs {
                let lfs = serde_json::json!({"sha256": checksum, "size": size, "pointerSize": 134});
                serde_json::json!({"rfilename": file.name, "size": size, "blobId": git, "lfs": lfs})
            } else {
                serde_json::json!({"rfilename": file.name, "size": size, "blobId": checksum})
            }
        })
        .collect();
    serde_json::json!({"id": "x", "sha": COMMIT, "gated": false, "siblings": siblings}).to_string()
}
