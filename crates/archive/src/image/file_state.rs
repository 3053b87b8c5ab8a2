//! Whether a file that is read twice is the same both times.

use super::blob::{Blob, Layer};
use crate::{Action, Cause, Error};
use std::fs::Metadata;
use std::io;
use std::time::SystemTime;

/// The state of a file that changes with each write or replacement.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FileState {
    len: u64,
    modified: Option<SystemTime>,
    #[cfg(unix)]
    identity: (u64, u64),
    /// No program can set it back.
    #[cfg(unix)]
    changed: (i64, i64),
}

impl FileState {
    fn of(meta: &Metadata) -> Self {
        Self {
            len: meta.len(),
            modified: meta.modified().ok(),
            #[cfg(unix)]
            identity: {
                use std::os::unix::fs::MetadataExt;
                (meta.dev(), meta.ino())
            },
            #[cfg(unix)]
            changed: {
                use std::os::unix::fs::MetadataExt;
                (meta.ctime(), meta.ctime_nsec())
            },
        }
    }
}

impl Blob {
    /// Returns the state of its file now; `None` for a pipe, and for a copy, which no other process
    /// has.
    fn state(&self) -> io::Result<Option<FileState>> {
        let meta = match self {
            Self::File(path) => path.metadata()?,
            Self::Range(file, ..) => file.metadata()?,
            Self::Unpacked(..) => return Ok(None),
        };
        Ok(meta.is_file().then(|| FileState::of(&meta)))
    }
}

impl Layer {
    /// Returns the state of its file now, if it can change.
    ///
    /// # Errors
    /// There is no such file any more.
    pub(crate) fn state(&self) -> Result<Option<FileState>, Error> {
        self.blob.state().map_err(|e| self.failed(Action::Open, e))
    }

    /// Checks that its file is as it was `before`.
    ///
    /// # Errors
    /// [`Cause::Changed`]; there is no such file any more.
    pub(crate) fn check_unchanged(&self, before: Option<&FileState>) -> Result<(), Error> {
        match self.state()? {
            Some(now) if before != Some(&now) => Err(self.failed(Action::Read, Cause::Changed)),
            _ => Ok(()),
        }
    }
}
