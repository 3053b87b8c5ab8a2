//! A folder that was made here, on systems other than Linux: it is found by its path.
//!
//! Hazard: another process that may write to the folder above can put something else in its place.

use crate::Cause;
use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io;
use std::path::{Path, PathBuf};

/// A folder.
#[derive(Debug)]
pub(crate) struct HeldFolder(PathBuf);

impl HeldFolder {
    /// Returns the folder that the caller has just made at `path`.
    pub(super) fn of_new(path: &Path) -> Result<Self, Cause> {
        Ok(Self(path.to_owned()))
    }

    /// Makes a folder in it.
    pub(crate) fn create_dir(&self, path: &str) -> io::Result<()> {
        fs::create_dir(self.0.join(path))
    }

    /// Makes a file in it, and drops the content of an older one.
    pub(crate) fn create_file(&self, path: &str) -> io::Result<File> {
        File::create(self.0.join(path))
    }

    /// Opens a file in it to read.
    pub(crate) fn open_file(&self, path: &str) -> io::Result<File> {
        File::open(self.0.join(path))
    }

    /// Gives a file in it another name.
    pub(crate) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.0.join(from), self.0.join(to))
    }

    /// Returns the names in a folder of it.
    pub(crate) fn names(&self, path: &str) -> io::Result<Vec<OsString>> {
        fs::read_dir(self.0.join(path))?.map(|entry| Ok(entry?.file_name())).collect()
    }

    /// Returns its mode.
    pub(super) fn permissions(&self) -> io::Result<Permissions> {
        Ok(fs::metadata(&self.0)?.permissions())
    }

    /// Sets its mode.
    pub(super) fn set_permissions(&self, mode: Permissions) -> io::Result<()> {
        fs::set_permissions(&self.0, mode)
    }

    /// Returns true: a folder is what has its path.
    pub(super) fn is_at(&self, _path: &Path) -> io::Result<bool> {
        Ok(true)
    }

    /// Makes the names in it and in the folders below it durable.
    pub(super) fn sync_all(&self) -> io::Result<()> {
        sync(&self.0)
    }

    /// Removes everything that is in it.
    pub(super) fn empty(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.0)? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => fs::remove_dir_all(entry.path())?,
                false => fs::remove_file(entry.path())?,
            }
        }
        Ok(())
    }
}

fn sync(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync(&entry.path())?;
        }
    }
    #[cfg(unix)]
    File::open(path)?.sync_all()?;
    Ok(())
}
