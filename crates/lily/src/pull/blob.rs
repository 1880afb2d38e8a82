//! One file: its bytes come into `{checksum}.incomplete`, which is continued as often as it takes, and get their final
//! name only when all of them are there and their checksum is right.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use ring::digest;

use super::hub::{Bytes, Hub, RemoteFile};
use super::layout::Layout;
use super::patience::{Failure, Patience};
use crate::terminal::progress::{Report, human_bytes};

/// Bytes that move at a time.
const PIECE: usize = 256 << 10;

/// Whether a blob is there with all its bytes.
pub fn is_here(path: &Path, size: u64) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() == size)
}

/// Whether the bytes of a blob are those that the Hub lists.
///
/// # Errors
/// The file cannot be read.
pub fn is_intact(path: &Path, remote: &RemoteFile) -> anyhow::Result<bool> {
    let hash = || -> io::Result<digest::Context> {
        let mut hash = remote.checksum.start(remote.size);
        hash_all(&mut File::open(path)?, &mut hash)?;
        Ok(hash)
    };
    Ok(remote.checksum.is(hash().with_context(|| path.display().to_string())?))
}

/// Makes the blob complete, of which `here` bytes were counted as present.
///
/// # Errors
/// One sentence; what came so far stays for the next pull.
pub fn fetch(
    hub: &Hub,
    layout: &Layout,
    commit: &str,
    (remote, here): (&RemoteFile, u64),
    report: &dyn Report,
) -> anyhow::Result<()> {
    let checksum = remote.checksum.name();
    let busy = || report.note(&format!("{}: another pull is at it; waiting", remote.name));
    let _lock = layout.lock(checksum, &busy)?;
    let path = layout.blob(checksum);
    // The pull that was waited for may have brought all of it, or more of it than was counted.
    if is_here(&path, remote.size) {
        report.advance(remote.size - here);
        return Ok(());
    }
    report.file(&remote.name, remote.size);
    let mut part = Part::open(layout.incomplete(checksum), remote)?;
    report.advance(part.len.saturating_sub(here));
    report.lose(here.saturating_sub(part.len));
    if part.len > 0 {
        report.note(&format!("{}: going on at {} of {}", remote.name, human_bytes(part.len), human_bytes(remote.size)));
    }
    let mut patience = Patience::new(hub.limits(), report);
    while let Err(failure) = part.attempt(hub, commit, report, &mut patience) {
        patience.bear(failure, &remote.name)?;
    }
    part.file.sync_all().with_context(|| part.path.display().to_string())?;
    fs::rename(&part.path, &path).with_context(|| path.display().to_string())
}

/// The bytes that are here, and their checksum so far.
struct Part<'a> {
    remote: &'a RemoteFile,
    path: PathBuf,
    file: File,
    hash: digest::Context,
    len: u64,
    /// Some of the bytes came with an earlier request: if they are wrong, a whole file may still be right.
    inherited: bool,
}

impl<'a> Part<'a> {
    fn open(path: PathBuf, remote: &'a RemoteFile) -> anyhow::Result<Self> {
        let open = || -> io::Result<Self> {
            let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path)?;
            if file.metadata()?.len() > remote.size {
                file.set_len(0)?;
            }
            let mut hash = remote.checksum.start(remote.size);
            let len = hash_all(&mut file, &mut hash)?;
            Ok(Self { remote, path: path.clone(), file, hash, len, inherited: len > 0 })
        };
        open().with_context(|| path.display().to_string())
    }

    /// Fetches what is missing, in one request, and checks the whole.
    fn attempt(
        &mut self,
        hub: &Hub,
        commit: &str,
        report: &dyn Report,
        patience: &mut Patience,
    ) -> Result<(), Failure> {
        if self.len < self.remote.size {
            match hub.open(commit, &self.remote.name, (self.len, self.remote.size))? {
                Bytes::Rest(reader) => {
                    self.inherited |= self.len > 0;
                    self.receive(reader, report, patience)?;
                }
                Bytes::Whole(reader) => {
                    // The server does not continue files.
                    self.restart(report)?;
                    self.receive(reader, report, patience)?;
                }
                Bytes::OutOfRange => {
                    self.restart(report)?;
                    return Err(Failure::passing("the server does not have the rest of the file"));
                }
            }
        }
        if self.remote.checksum.is(self.hash.clone()) {
            return Ok(());
        }
        let inherited = self.inherited;
        self.restart(report)?;
        if inherited {
            return Err(Failure::passing("the bytes of an earlier request were damaged; starting the file anew"));
        }
        let name = &self.remote.name;
        let error =
            anyhow!("{name}: the bytes that came do not have the checksum that the Hub lists; they were deleted");
        Err(Failure::Final(error))
    }

    fn receive(&mut self, mut reader: impl Read, report: &dyn Report, patience: &mut Patience) -> Result<(), Failure> {
        let mut piece = vec![0; PIECE];
        while self.len < self.remote.size {
            let room = (self.remote.size - self.len).min(PIECE as u64) as usize; // at most PIECE
            let count = match reader.read(&mut piece[..room]) {
                Ok(0) => return Err(Failure::passing("the connection was cut")),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Failure::passing(read_failure(&error))),
            };
            self.file.write_all(&piece[..count]).map_err(|error| self.write_failure(error))?;
            self.hash.update(&piece[..count]);
            self.len += count as u64;
            report.advance(count as u64);
            patience.gain(count as u64);
        }
        Ok(())
    }

    /// Throws the bytes away.
    fn restart(&mut self, report: &dyn Report) -> Result<(), Failure> {
        let emptied = self.file.set_len(0).and_then(|()| self.file.seek(SeekFrom::Start(0)));
        emptied.map_err(|error| self.write_failure(error))?;
        report.lose(self.len);
        self.hash = self.remote.checksum.start(self.remote.size);
        (self.len, self.inherited) = (0, false);
        Ok(())
    }

    fn write_failure(&self, error: io::Error) -> Failure {
        Failure::Final(anyhow::Error::new(error).context(self.path.display().to_string()))
    }
}

fn read_failure(error: &io::Error) -> String {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<ureq::Error>());
    if matches!(cause, Some(ureq::Error::Timeout(_))) || error.kind() == io::ErrorKind::TimedOut {
        return "the connection stalled".to_owned();
    }
    format!("the connection was cut ({error})")
}

/// Reads to the end; how many bytes there were.
fn hash_all(file: &mut File, hash: &mut digest::Context) -> io::Result<u64> {
    let mut piece = vec![0; PIECE];
    let mut len = 0;
    loop {
        match file.read(&mut piece) {
            Ok(0) => return Ok(len),
            Ok(count) => {
                hash.update(&piece[..count]);
                len += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
