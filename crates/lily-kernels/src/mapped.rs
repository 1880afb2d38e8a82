//! Weight files in memory: a read-only mapping of a file, or bytes compiled into the program, or made up by a test.
//! Only whole files are mapped; which bytes mean what is the checkpoint's business.

use std::fmt;
use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use memmap2::{Mmap, MmapOptions};

/// Why a weight file could not be mapped. `Display` is the whole sentence, so there is no `source()`.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {}: {reason}", path.display())]
pub struct MapError {
    /// The file.
    pub path: PathBuf,
    /// The system's reason, or ours: a directory, not a regular file, empty.
    pub reason: io::Error,
}

/// A weight file's bytes, readable for as long as the value lives.
///
/// **When the file changes underneath.** Replacing it by rename, or deleting it, is harmless: the mapping keeps the old
/// file alive. Writing into the mapped file changes weights under running requests; truncating it makes the next read
/// past the new end raise SIGBUS (an in-page error on Windows), which ends the process. Neither can be prevented from
/// here; [`MappedFile::changed`] detects both, and the engine asks between requests.
pub struct MappedFile {
    name: String,
    backing: Backing,
}

enum Backing {
    File { map: Mmap, file: File, opened: Stamp },
    Static(&'static [u8]),
    Owned(Vec<u8>),
}

/// What tells an untouched file from a changed one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    bytes: u64,
    /// `None` where the file system keeps no modification time.
    modified: Option<SystemTime>,
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self { bytes: metadata.len(), modified: metadata.modified().ok() }
    }
}

impl MappedFile {
    /// Maps a file, following links.
    ///
    /// # Errors
    /// The path is a directory, no regular file, unreadable or empty.
    pub fn open(path: &Path) -> Result<Arc<Self>, MapError> {
        let map = |path: &Path| {
            let file = File::open(path)?;
            let metadata = file.metadata()?;
            let opened = Stamp::of(&metadata);
            let bytes = mappable_length(&metadata)?;
            // SAFETY: the mapping is private to this value, read-only, and only ever lent as `&[u8]` bound to `self`,
            // so it is not unmapped while borrowed. Rust asks besides that nobody writes into the file meanwhile; no
            // program can enforce that on a file of the user's, so the type documents what then happens, readers treat
            // the bytes as plain numbers (any bit pattern is a valid weight), and `changed` reports it.
            let map = unsafe { MmapOptions::new().len(bytes).map(&file) }?;
            Ok(Backing::File { map, file, opened })
        };
        let backing = map(path).map_err(|reason| MapError { path: path.to_owned(), reason })?;
        Ok(Arc::new(Self { name: path.display().to_string(), backing }))
    }

    /// Wraps bytes that are part of the program.
    pub fn from_static(name: &str, bytes: &'static [u8]) -> Arc<Self> {
        Arc::new(Self { name: name.to_owned(), backing: Backing::Static(bytes) })
    }

    /// Wraps bytes that were made up, for tests.
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Arc<Self> {
        Arc::new(Self { name: name.to_owned(), backing: Backing::Owned(bytes) })
    }

    /// All bytes of the file, at whatever alignment the file gives them.
    pub fn bytes(&self) -> &[u8] {
        match &self.backing {
            Backing::File { map, .. } => map,
            Backing::Static(bytes) => bytes,
            Backing::Owned(bytes) => bytes,
        }
    }

    /// Whether it is a mapping of a file: it begins with a page, and its last page is all there.
    #[cfg(any(target_vendor = "apple", feature = "software-metal"))]
    pub(crate) const fn is_mapped(&self) -> bool {
        matches!(self.backing, Backing::File { .. })
    }

    /// The path as opened, or the name of an embedded file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// One sentence if the mapped file was written to or truncated since it was opened. Costs one `fstat`.
    pub fn changed(&self) -> Option<String> {
        let Backing::File { file, opened, .. } = &self.backing else { return None };
        let name = &self.name;
        let now = match file.metadata() {
            Ok(metadata) => Stamp::of(&metadata),
            Err(reason) => return Some(format!("{name} can no longer be examined: {reason}")),
        };
        if now.bytes != opened.bytes {
            Some(format!("{name} changed from {} to {} bytes since it was opened", opened.bytes, now.bytes))
        } else if now.modified != opened.modified {
            Some(format!("{name} was written to since it was opened"))
        } else {
            None
        }
    }
}

/// Length to map, in bytes.
fn mappable_length(metadata: &Metadata) -> io::Result<usize> {
    if metadata.is_dir() {
        return Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a directory, not a file"));
    }
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    if metadata.len() == 0 {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it is empty"));
    }
    usize::try_from(metadata.len())
        .map_err(|_| io::Error::new(io::ErrorKind::FileTooLarge, "it does not fit the address space"))
}

impl fmt::Debug for MappedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MappedFile").field("name", &self.name).field("bytes", &self.bytes().len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::time::Duration;

    #[test]
    fn maps_a_file_and_static_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w");
        fs::write(&path, b"weights").unwrap();
        let file = MappedFile::open(&path).unwrap();
        assert_eq!(file.bytes(), b"weights");
        assert_eq!(file.name(), path.display().to_string());
        assert_eq!(file.changed(), None);

        let fixed = MappedFile::from_static("demo", b"abc");
        assert_eq!((fixed.name(), fixed.bytes(), fixed.changed()), ("demo", &b"abc"[..], None));
        assert_eq!(format!("{fixed:?}"), r#"MappedFile { name: "demo", bytes: 3 }"#);
    }

    #[test]
    fn refusals_are_one_sentence() {
        let folder = tempfile::tempdir().unwrap();
        let empty = folder.path().join("empty");
        fs::write(&empty, b"").unwrap();
        let absent = folder.path().join("absent");
        for (path, reason) in [
            (folder.path(), "it is a directory, not a file"),
            (&empty, "it is empty"),
            (&absent, "No such file or directory (os error 2)"),
        ] {
            if cfg!(windows) && path != empty {
                continue; // Windows words these itself.
            }
            let error = MappedFile::open(path).unwrap_err();
            assert_eq!(error.to_string(), format!("cannot read {}: {reason}", path.display()));
        }
    }

    #[cfg(unix)]
    #[test]
    fn special_files_are_refused() {
        let error = MappedFile::open(Path::new("/dev/null")).unwrap_err();
        assert_eq!(error.to_string(), "cannot read /dev/null: it is not a regular file");
    }

    #[test]
    fn reports_truncation_writes_and_tolerates_replacement() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w");
        fs::write(&path, b"weights").unwrap();
        let file = MappedFile::open(&path).unwrap();

        let later = SystemTime::now() + Duration::from_secs(60);
        File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
        assert!(file.changed().unwrap().ends_with("was written to since it was opened"));

        File::options().write(true).open(&path).unwrap().set_len(3).unwrap();
        assert!(file.changed().unwrap().ends_with("changed from 7 to 3 bytes since it was opened"));

        let file = MappedFile::open(&path).unwrap();
        let new = folder.path().join("new");
        fs::write(&new, b"other weights").unwrap();
        fs::rename(&new, &path).unwrap();
        assert_eq!((file.bytes(), file.changed()), (&b"wei"[..], None));
    }
}
