//! A model's files by name, whether they lie in a folder or are part of the program.

use std::borrow::Cow;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lily_kernels::mapped::MappedFile;

use super::CheckpointError;
use super::cache::repository_of;
use super::{EmbeddedModel, ModelSource};

/// Flat: no name holds a path separator.
#[derive(Debug, Clone)]
pub(super) enum ModelFiles {
    Folder(PathBuf),
    Embedded(EmbeddedModel),
}

impl ModelFiles {
    pub(super) fn open(source: &ModelSource) -> Result<Self, CheckpointError> {
        let path = match source {
            ModelSource::Embedded(model) => return Ok(Self::Embedded(*model)),
            ModelSource::Folder(path) => path,
        };
        let problem = match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => return Ok(Self::Folder(path.clone())),
            Ok(_) => "it is a file; give the folder around it".to_owned(),
            Err(reason) => reason.to_string(),
        };
        Err(CheckpointError::Folder { path: path.clone(), problem })
    }

    /// Name of the model for people.
    pub(super) fn model_name(&self) -> String {
        match self {
            Self::Embedded(model) => model.name.to_owned(),
            Self::Folder(path) => {
                // `.` and `..` have no name of their own.
                let full = fs::canonicalize(path).unwrap_or_else(|_| path.clone());
                repository_of(&full)
                    .or_else(|| full.file_name().map(|name| name.to_string_lossy().into_owned()))
                    .unwrap_or_else(|| full.display().to_string())
            }
        }
    }

    /// Where the model is, for error sentences.
    pub(super) fn place(&self) -> String {
        match self {
            Self::Embedded(model) => model.name.to_owned(),
            Self::Folder(path) => path.display().to_string(),
        }
    }

    /// Path of a file, for error sentences.
    pub(super) fn path_of(&self, name: &str) -> String {
        match self {
            Self::Embedded(model) => Path::new(model.name).join(name).display().to_string(),
            Self::Folder(path) => path.join(name).display().to_string(),
        }
    }

    /// Whether there is a file of that name, readable or not.
    pub(super) fn has(&self, name: &str) -> bool {
        match self {
            Self::Embedded(model) => embedded(model, name).is_some(),
            Self::Folder(path) => path.join(name).symlink_metadata().is_ok(),
        }
    }

    /// A whole file; `None` if there is none of that name.
    pub(super) fn read(&self, name: &str) -> Result<Option<Cow<'static, [u8]>>, CheckpointError> {
        match self {
            Self::Embedded(model) => Ok(embedded(model, name).map(Cow::Borrowed)),
            Self::Folder(path) => match fs::read(path.join(name)) {
                Ok(bytes) => Ok(Some(Cow::Owned(bytes))),
                Err(reason) if reason.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(reason) => Err(CheckpointError::file(&self.path_of(name), reason.to_string())),
            },
        }
    }

    /// A whole text file; `None` if there is none of that name.
    pub(super) fn read_text(&self, name: &str) -> Result<Option<String>, CheckpointError> {
        let Some(bytes) = self.read(name)? else {
            return Ok(None);
        };
        match String::from_utf8(bytes.into_owned()) {
            Ok(text) => Ok(Some(text)),
            Err(reason) => Err(CheckpointError::file(&self.path_of(name), format!("not UTF-8 text: {reason}"))),
        }
    }

    /// A weight file, in memory without being read; `None` if there is none of that name.
    pub(super) fn map(&self, name: &str) -> Result<Option<Arc<MappedFile>>, CheckpointError> {
        match self {
            Self::Embedded(model) => {
                Ok(embedded(model, name).map(|bytes| MappedFile::from_static(&self.path_of(name), bytes)))
            }
            Self::Folder(path) => match MappedFile::open(&path.join(name)) {
                Ok(file) => Ok(Some(file)),
                Err(error) if error.reason.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(CheckpointError::file(&self.path_of(name), error.reason.to_string())),
            },
        }
    }
}

fn embedded(model: &EmbeddedModel, name: &str) -> Option<&'static [u8]> {
    model.files.iter().find(|(file, _)| *file == name).map(|(_, bytes)| *bytes)
}
