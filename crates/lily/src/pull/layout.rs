//! The folders of a Hugging Face cache, as `huggingface_hub` lays them out, so that every tool finds the same files:
//! `models--{owner}--{name}/{blobs, refs, snapshots/{commit}}` and, beside it, `.locks`.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// The folders of one repository.
#[derive(Debug)]
pub struct Layout {
    repository: PathBuf,
    locks: PathBuf,
}

impl Layout {
    /// Makes the folders. The parts of `repo` are plain names.
    ///
    /// # Errors
    /// One cannot be made.
    pub fn create(hub_dir: &Path, repo: &str) -> anyhow::Result<Self> {
        let name = format!("models--{}", repo.replace('/', "--"));
        let layout = Self { repository: hub_dir.join(&name), locks: hub_dir.join(".locks").join(&name) };
        for folder in [layout.repository.join("blobs"), layout.locks.clone()] {
            fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        }
        Ok(layout)
    }

    /// Folder of the repository.
    pub fn repository(&self) -> &Path {
        &self.repository
    }

    /// A file's bytes under the name of their checksum.
    pub fn blob(&self, checksum: &str) -> PathBuf {
        self.repository.join("blobs").join(checksum)
    }

    /// The bytes so far. Older versions of `huggingface_hub` use the same name; what they left is continued too.
    pub fn incomplete(&self, checksum: &str) -> PathBuf {
        self.repository.join("blobs").join(format!("{checksum}.incomplete"))
    }

    /// Folder of a commit's files.
    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.repository.join("snapshots").join(commit)
    }

    /// Puts a blob into a snapshot under its real name.
    ///
    /// # Errors
    /// The link cannot be made.
    pub fn link(&self, commit: &str, name: &str, checksum: &str) -> anyhow::Result<()> {
        let pointer = self.snapshot(commit).join(name);
        let target = Path::new("../../blobs").join(checksum);
        if fs::read_link(&pointer).is_ok_and(|found| found == target) {
            return Ok(());
        }
        replace(&pointer, |path| symlink(&target, path)).with_context(|| pointer.display().to_string())
    }

    /// Looks, before anything is fetched, whether the name of a revision can be written.
    ///
    /// # Errors
    /// One revision is called like a folder of others: one sentence that names the path.
    pub fn check_ref(&self, revision: &str, commit: &str) -> anyhow::Result<()> {
        if revision == commit {
            return Ok(());
        }
        let refs = self.repository.join("refs");
        let path = refs.join(revision);
        let file = path.ancestors().skip(1).take_while(|folder| folder.starts_with(&refs)).find(|path| path.is_file());
        let (taken, what) = match file {
            Some(file) => (file, "names another revision, so no revision below it can be named"),
            None if path.is_dir() => (path.as_path(), "is a folder of other revisions, so it can name none itself"),
            None => return Ok(()),
        };
        bail!("{}: this {what}; delete it, or pull the commit by `--revision {commit}`", taken.display())
    }

    /// Lets a branch or tag name a commit; a commit needs no other name.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_ref(&self, revision: &str, commit: &str) -> anyhow::Result<()> {
        let path = self.repository.join("refs").join(revision);
        if revision == commit || fs::read_to_string(&path).is_ok_and(|found| found == commit) {
            return Ok(());
        }
        replace(&path, |path| fs::write(path, commit)).with_context(|| path.display().to_string())
    }

    /// Holds a blob against other pulls, `huggingface_hub`'s included, until the file is dropped. Calls `waiting` once
    /// if another one holds it.
    ///
    /// # Errors
    /// The lock file cannot be made.
    pub fn lock(&self, checksum: &str, waiting: &dyn Fn()) -> anyhow::Result<File> {
        let path = self.locks.join(format!("{checksum}.lock"));
        let hold = || -> io::Result<File> {
            let mut told = false;
            loop {
                let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path)?;
                match file.try_lock() {
                    Ok(()) => {}
                    Err(TryLockError::Error(error)) => return Err(error),
                    Err(TryLockError::WouldBlock) => {
                        if !std::mem::replace(&mut told, true) {
                            waiting();
                        }
                        file.lock()?;
                    }
                }
                // Some tools delete the lock file when they let go; a lock on a deleted file keeps nobody out.
                let ours = file.metadata()?.ino();
                if fs::metadata(&path).is_ok_and(|found| found.ino() == ours) {
                    return Ok(file);
                }
            }
        };
        hold().with_context(|| path.display().to_string())
    }
}

/// Makes `path` beside itself and moves it there, so that nobody sees half of it.
fn replace(path: &Path, make: impl Fn(&Path) -> io::Result<()>) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    // Two machines or containers may share the cache, so the number of this process is not enough. The name itself is
    // not in it: it may be as long as a name can be.
    let aside = folder.join(format!(".lily-{:x}", crate::random_seed()));
    make(&aside)?;
    fs::rename(&aside, path).inspect_err(|_| drop(fs::remove_file(&aside)))
}
