//! Snapshots on a disk, so that a conversation goes on after a restart. One file each, named by its length and the hash
//! of its tokens. What does not verify to the last byte, or was written for another model, is never used.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::SystemTime;

use sha2::{Digest, Sha256};

/// First bytes of a file; the number is the version of the format.
const MAGIC: &[u8; 8] = b"LILYSES1";
const HASH_BYTES: usize = 32;
/// Magic, fingerprint, and three lengths.
const HEADER_BYTES: usize = MAGIC.len() + HASH_BYTES + 3 * 8;
const SUFFIX: &str = "session";
/// Records that may wait to be written; more are dropped rather than held in memory.
const WAITING: usize = 2;
/// Shorter prefixes are computed as fast as they are read.
const MIN_TOKENS: usize = 32;

/// A SHA-256.
pub type Fingerprint = [u8; HASH_BYTES];

/// What a file holds.
#[derive(Debug, PartialEq, Eq)]
pub struct Record {
    /// The prefix.
    pub tokens: Vec<u32>,
    /// The recurrent state behind it.
    pub state: Vec<u8>,
    /// Its KV blocks, one after the other.
    pub kv: Vec<u8>,
}

/// Where snapshots are kept, and how many bytes of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskOptions {
    /// A folder; made if it is not there.
    pub folder: PathBuf,
    /// Most bytes of snapshots in it, those of other models included.
    pub bytes: u64,
}

/// A prefix: its length, and the beginning of its hash in hexadecimal.
type Key = (usize, String);

/// The files of one model.
#[derive(Debug)]
pub struct DiskTier {
    shared: Arc<Shared>,
    /// None once it is closed.
    writer: Option<SyncSender<Record>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    folder: PathBuf,
    fingerprint: Fingerprint,
    budget: u64,
    files: Mutex<Files>,
}

#[derive(Debug, Default)]
struct Files {
    /// Of this model.
    keys: BTreeSet<Key>,
    /// Of all models, by time of the last use; the path makes them differ.
    by_age: BTreeMap<(SystemTime, PathBuf), u64>,
}

impl DiskTier {
    /// The snapshots of the model with this fingerprint: in a folder of its own, since others are of no use to it.
    ///
    /// # Errors
    /// The folder cannot be made or read.
    pub fn open(options: &DiskOptions, fingerprint: Fingerprint) -> io::Result<Self> {
        let folder = options.folder.join(&hex(&fingerprint)[..16]);
        let shared = Shared { folder, fingerprint, budget: options.bytes, files: Mutex::default() };
        shared.make_folder()?;
        for model in fs::read_dir(&options.folder)? {
            let model = model?.path();
            if model.is_dir() {
                shared.add_all(&model)?;
            }
        }
        shared.prune(&mut shared.files());
        let shared = Arc::new(shared);
        let (writer, records) = sync_channel(WAITING);
        let on_thread = Arc::clone(&shared);
        let write_all = move || records.iter().for_each(|record| on_thread.write(&record));
        let thread = std::thread::Builder::new().name("sessions".into()).spawn(write_all)?;
        Ok(Self { shared, writer: Some(writer), thread: Some(thread) })
    }

    /// Whether a prefix is worth writing and not there.
    pub fn wants(&self, tokens: &[u32]) -> bool {
        tokens.len() >= MIN_TOKENS && !self.shared.files().keys.contains(&key(tokens))
    }

    /// Writes a snapshot in the background; `must` waits where others are being written.
    pub fn save(&self, record: Record, must: bool) {
        let Some(writer) = &self.writer else { return };
        if must {
            // The thread lives as long as the sender.
            let _ = writer.send(record);
        } else if let Err(TrySendError::Full(record)) = writer.try_send(record) {
            tracing::debug!(tokens = record.tokens.len(), "a snapshot was not written: the disk is busy");
        }
    }

    /// The length of the longest prefix of `tokens` that is there, above `more_than` and at most `limit`.
    pub fn longest(&self, tokens: &[u32], more_than: usize, limit: usize) -> Option<usize> {
        let files = self.shared.files();
        let (mut hasher, mut at, mut best) = (Sha256::new(), 0, None);
        let in_range = |(len, _): &&Key| *len > more_than && *len <= limit.min(tokens.len());
        for (len, hash) in files.keys.iter().filter(in_range) {
            hash_tokens(&mut hasher, &tokens[at..*len]);
            at = *len;
            if *hash == short(&hasher.clone().finalize().into()) {
                best = Some(*len);
            }
        }
        best
    }

    /// The snapshot of a prefix, if its file is whole and of this model. If not, it is forgotten, and said so.
    pub fn load(&self, tokens: &[u32]) -> Option<Record> {
        let key = key(tokens);
        let path = self.shared.path(&key);
        let record = fs::read(&path).map_err(|error| error.to_string()).and_then(|bytes| {
            let record = decode(bytes, &self.shared.fingerprint)?;
            if record.tokens == tokens { Ok(record) } else { Err("it is of other tokens".into()) }
        });
        match record {
            Ok(record) => {
                let now = SystemTime::now();
                // The time is only for choosing what to delete.
                let _ = File::options().append(true).open(&path).and_then(|file| file.set_modified(now));
                let mut files = self.shared.files();
                if let Some(bytes) = files.remove(&path) {
                    files.by_age.insert((now, path), bytes);
                }
                Some(record)
            }
            Err(reason) => {
                tracing::warn!(file = %path.display(), "a snapshot is not used: {reason}");
                self.shared.files().keys.remove(&key);
                None
            }
        }
    }

    /// Files and their bytes, those of other models included.
    pub fn held(&self) -> (usize, u64) {
        let files = self.shared.files();
        (files.by_age.len(), files.by_age.values().sum())
    }
}

impl Drop for DiskTier {
    fn drop(&mut self) {
        self.writer = None;
        if let Some(thread) = self.thread.take() {
            // What waits is written first. A panic of the thread has lost copies, nothing else.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, (len, hash): &Key) -> PathBuf {
        self.folder.join(format!("{len:08}-{hash}.{SUFFIX}"))
    }

    /// What is in it was said in private.
    fn make_folder(&self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)
    }

    /// Counts the snapshots of a model's folder.
    fn add_all(&self, model: &Path) -> io::Result<()> {
        for entry in fs::read_dir(model)? {
            let entry = entry?;
            let (path, metadata) = (entry.path(), entry.metadata()?);
            match entry.file_name().to_str().and_then(parse_name) {
                Some(key) => {
                    let mut files = self.files();
                    files.by_age.insert((metadata.modified()?, path), metadata.len());
                    if model == self.folder {
                        files.keys.insert(key);
                    }
                }
                // Left by a process that died while it wrote.
                None if path.extension().is_some_and(|suffix| suffix == "part") && model == self.folder => {
                    fs::remove_file(path)?;
                }
                None => {}
            }
        }
        Ok(())
    }

    fn write(&self, record: &Record) {
        let key = key(&record.tokens);
        let path = self.path(&key);
        let bytes = encode(record, &self.fingerprint);
        if bytes.len() as u64 > self.budget {
            return;
        }
        // Somebody may have removed the folder meanwhile.
        if let Err(error) = self.make_folder().and_then(|()| write_whole(&path, &bytes)) {
            tracing::warn!(file = %path.display(), "a snapshot was not written: {error}");
            return;
        }
        let mut files = self.files();
        files.remove(&path);
        files.keys.insert(key);
        files.by_age.insert((SystemTime::now(), path), bytes.len() as u64);
        self.prune(&mut files);
    }

    /// Removes the files that were of no use for the longest time, until the rest is within the budget.
    fn prune(&self, files: &mut Files) {
        while files.by_age.values().sum::<u64>() > self.budget {
            let Some(((_, oldest), _)) = files.by_age.pop_first() else { break };
            files.keys.retain(|key| self.path(key) != oldest);
            if let Err(error) = fs::remove_file(&oldest) {
                tracing::warn!(file = %oldest.display(), "an old snapshot was not removed: {error}");
            }
        }
    }
}

impl Files {
    /// Forgets a file's age; its size.
    fn remove(&mut self, path: &Path) -> Option<u64> {
        let at = self.by_age.keys().find(|(_, other)| other == path).cloned()?;
        self.by_age.remove(&at)
    }
}

/// A reader sees all of a file or none of it.
fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let part = path.with_extension(format!("{}.part", std::process::id()));
    let only_ours = File::options().write(true).create(true).truncate(true).mode(0o600).open(&part);
    let written = only_ours.and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    let renamed = written.and_then(|()| fs::rename(&part, path));
    if renamed.is_err() {
        // What is left of it is removed at the next start too.
        let _ = fs::remove_file(&part);
    }
    renamed
}

/// Magic, fingerprint, lengths of the parts in bytes; tokens, state, KV blocks; the SHA-256 of all that. Numbers are
/// little-endian.
fn encode(record: &Record, fingerprint: &Fingerprint) -> Vec<u8> {
    let parts = [record.tokens.len() * 4, record.state.len(), record.kv.len()];
    let mut bytes = Vec::with_capacity(HEADER_BYTES + parts.iter().sum::<usize>() + HASH_BYTES);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(fingerprint);
    parts.iter().for_each(|len| bytes.extend_from_slice(&(*len as u64).to_le_bytes()));
    record.tokens.iter().for_each(|token| bytes.extend_from_slice(&token.to_le_bytes()));
    bytes.extend_from_slice(&record.state);
    bytes.extend_from_slice(&record.kv);
    let hash = Sha256::digest(&bytes);
    bytes.extend_from_slice(&hash);
    bytes
}

fn decode(mut bytes: Vec<u8>, fingerprint: &Fingerprint) -> Result<Record, String> {
    let Some(end) = bytes.len().checked_sub(HASH_BYTES).filter(|end| *end >= HEADER_BYTES) else {
        return Err("it is cut short".into());
    };
    if !bytes.starts_with(MAGIC) {
        return Err("it is of another format".into());
    }
    if bytes[MAGIC.len()..MAGIC.len() + HASH_BYTES] != fingerprint[..] {
        return Err("it is of another model".into());
    }
    if Sha256::digest(&bytes[..end])[..] != bytes[end..] {
        return Err("it is damaged".into());
    }
    let lengths = bytes[MAGIC.len() + HASH_BYTES..HEADER_BYTES].as_chunks::<8>().0;
    let lengths: Vec<usize> = lengths.iter().map(|bytes| u64::from_le_bytes(*bytes) as usize).collect();
    if lengths.iter().sum::<usize>() != end - HEADER_BYTES {
        return Err("its lengths are not those of its parts".into());
    }
    bytes.truncate(end);
    let kv = bytes.split_off(HEADER_BYTES + lengths[0] + lengths[1]);
    let state = bytes.split_off(HEADER_BYTES + lengths[0]);
    let tokens = bytes[HEADER_BYTES..].as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
    Ok(Record { tokens, state, kv })
}

fn hash_tokens(hasher: &mut Sha256, tokens: &[u32]) {
    tokens.iter().for_each(|token| hasher.update(token.to_le_bytes()));
}

fn key(tokens: &[u32]) -> Key {
    let mut hasher = Sha256::new();
    hash_tokens(&mut hasher, tokens);
    (tokens.len(), short(&hasher.finalize().into()))
}

fn short(hash: &Fingerprint) -> String {
    hex(hash)[..32].to_owned()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn parse_name(name: &str) -> Option<Key> {
    let (len, hash) = name.strip_suffix(SUFFIX)?.strip_suffix('.')?.split_once('-')?;
    let is_hash = hash.len() == 32 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    Some((len.parse().ok()?, hash.to_owned())).filter(|_| is_hash)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const US: Fingerprint = [7; HASH_BYTES];

    fn record(tokens: u32) -> Record {
        Record { tokens: (0..tokens).collect(), state: vec![1; 100], kv: vec![2; 300] }
    }

    fn tier(folder: &Path, bytes: u64, fingerprint: Fingerprint) -> DiskTier {
        DiskTier::open(&DiskOptions { folder: folder.to_owned(), bytes }, fingerprint).unwrap()
    }

    fn ids(count: u32) -> Vec<u32> {
        (0..count).collect()
    }

    #[test]
    fn what_was_saved_is_there_after_a_restart_at_its_own_length_only() {
        let folder = tempfile::tempdir().unwrap();
        let first = tier(folder.path(), 1 << 20, US);
        for tokens in [40, 50, 3000] {
            first.save(record(tokens), true);
        }
        drop(first);
        let again = tier(folder.path(), 1 << 20, US);
        let longest = |tokens, more_than, limit| again.longest(&ids(tokens), more_than, limit);
        assert_eq!(
            (longest(4000, 0, 4000), longest(3000, 0, 2999), longest(3000, 0, 3000)),
            (Some(3000), Some(50), Some(3000))
        );
        assert_eq!((longest(49, 0, 49), longest(39, 0, 39), longest(45, 40, 45)), (Some(40), None, None));
        assert_eq!(again.load(&ids(50)), Some(record(50)));
        assert!(!again.wants(&ids(50)) && again.wants(&ids(51)) && !again.wants(&ids(20)));
        let other = tier(folder.path(), 1 << 20, [8; HASH_BYTES]);
        assert_eq!(other.longest(&ids(4000), 0, 4000), None, "another model's are not its own");
    }

    #[test]
    fn nobody_else_can_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let tier = tier(&folder.path().join("deep/er"), 1 << 20, US);
        tier.save(record(64), true);
        while tier.wants(&ids(64)) {
            std::thread::yield_now();
        }
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&tier.shared.folder), mode(&tier.shared.path(&key(&ids(64))))), (0o700, 0o600));
    }

    #[test]
    fn the_least_recently_used_go_beyond_the_budget() {
        let folder = tempfile::tempdir().unwrap();
        let bytes = encode(&record(100), &US).len() as u64;
        let tier = tier(folder.path(), 3 * bytes + 100, US);
        for tokens in [100, 99, 98] {
            tier.save(record(tokens), true);
        }
        // The last has been written when a fourth can be handed over.
        while tier.held().0 < 3 {
            std::thread::yield_now();
        }
        assert!(tier.load(&ids(100)).is_some());
        tier.save(record(97), true);
        while tier.wants(&ids(97)) {
            std::thread::yield_now();
        }
        let there: Vec<bool> = [100, 99, 98, 97].map(|tokens| tier.load(&ids(tokens)).is_some()).into();
        assert_eq!(there, [true, false, true, true]);
        let on_disk = fs::read_dir(&tier.shared.folder).unwrap().count();
        assert_eq!((on_disk, tier.held().0), (3, 3));
        // A smaller budget, and another model: what is too much goes at once, whoever wrote it.
        drop(tier);
        let other = self::tier(folder.path(), bytes + 100, [8; HASH_BYTES]);
        assert_eq!(other.held().0, 1);
        assert_eq!(fs::read_dir(folder.path().join(&hex(&US)[..16])).unwrap().count(), 1);
    }

    #[test]
    fn a_folder_that_was_removed_is_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let tier = tier(folder.path(), 1 << 20, US);
        fs::remove_dir_all(&tier.shared.folder).unwrap();
        tier.save(record(64), true);
        while tier.wants(&ids(64)) {
            std::thread::yield_now();
        }
        assert_eq!(tier.load(&ids(64)), Some(record(64)));
    }

    #[test]
    fn damaged_cut_and_foreign_files_are_refused_and_forgotten() {
        let whole = encode(&record(64), &US);
        let at = |byte: usize| {
            let mut bytes = whole.clone();
            bytes[byte] ^= 1;
            bytes
        };
        let foreign = encode(&record(64), &[9; HASH_BYTES]);
        let other = encode(&Record { tokens: vec![5; 64], ..record(64) }, &US);
        let cut = |len: usize| whole[..len].to_vec();
        for bytes in [
            at(0),
            at(9),
            at(45),
            at(80),
            at(400),
            at(whole.len() - 1),
            cut(0),
            cut(100),
            cut(whole.len() - 1),
            foreign,
            other,
        ] {
            let folder = tempfile::tempdir().unwrap();
            let tier = tier(folder.path(), 1 << 20, US);
            tier.save(record(64), true);
            while tier.wants(&ids(64)) {
                std::thread::yield_now();
            }
            fs::write(tier.shared.path(&key(&ids(64))), bytes).unwrap();
            assert_eq!(tier.load(&ids(64)), None);
            assert!(tier.wants(&ids(64)), "it may be written again");
        }
        assert_eq!(decode(whole, &US), Ok(record(64)));
    }

    #[test]
    fn what_a_killed_process_left_is_removed_and_other_files_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let tier = tier(folder.path(), 1 << 20, US);
        let place = tier.shared.folder.clone();
        drop(tier);
        for name in ["00000064-x.12.part", "notes.txt", "00000064-zz.session"] {
            fs::write(place.join(name), "x").unwrap();
        }
        let tier = self::tier(folder.path(), 1 << 20, US);
        assert_eq!(tier.held(), (0, 0));
        assert!(!place.join("00000064-x.12.part").exists() && place.join("notes.txt").exists());
    }
}
