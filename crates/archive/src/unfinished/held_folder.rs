//! A folder that was made here, held by a descriptor.
//!
//! Paths in it are relative, and only its owner may change what is in it. So nothing that another
//! process does to its name redirects a write.

use super::{is_at, replaced};
use crate::Cause;
use crate::host::names_in;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{self, AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// A file that is made in a new folder for a moment.
const PROBE: &str = "owner";

/// An open folder.
#[derive(Debug)]
pub(crate) struct HeldFolder(File);

impl HeldFolder {
    /// Opens the folder that the caller has just made at `path`, for its owner alone.
    ///
    /// # Errors
    /// Another process has replaced it: it is not empty, or has another owner than new files.
    pub(super) fn of_new(path: &Path) -> Result<Self, Cause> {
        let folder = Self(open_dir(CWD, path.as_os_str())?.into());
        if !folder.names(".")?.is_empty() {
            return Err(replaced());
        }
        // That need not be the user: a server may map it to another one.
        let owner = folder.create_file(PROBE)?.metadata()?.uid();
        fs::unlinkat(&folder.0, PROBE, AtFlags::empty())?;
        if folder.0.metadata()?.uid() == owner { Ok(folder) } else { Err(replaced()) }
    }

    /// Makes a folder in it.
    pub(crate) fn create_dir(&self, path: &str) -> io::Result<()> {
        Ok(fs::mkdirat(&self.0, path, Mode::from_raw_mode(0o777))?)
    }

    /// Makes a file in it, and drops the content of an older one.
    pub(crate) fn create_file(&self, path: &str) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(fs::openat(&self.0, path, flags, Mode::from_raw_mode(0o666))?.into())
    }

    /// Opens a file in it to read.
    pub(crate) fn open_file(&self, path: &str) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(fs::openat(&self.0, path, flags, Mode::empty())?.into())
    }

    /// Gives a file in it another name.
    pub(crate) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(fs::renameat(&self.0, from, &self.0, to)?)
    }

    /// Returns the names in a folder of it.
    pub(crate) fn names(&self, path: &str) -> io::Result<Vec<OsString>> {
        Ok(names_in(open_dir(&self.0, OsStr::new(path))?)?)
    }

    /// Returns its mode.
    pub(super) fn permissions(&self) -> io::Result<Permissions> {
        Ok(self.0.metadata()?.permissions())
    }

    /// Sets its mode.
    pub(super) fn set_permissions(&self, mode: Permissions) -> io::Result<()> {
        self.0.set_permissions(mode)
    }

    /// Returns whether a name leads to this folder, and not to what another process has put there.
    pub(super) fn is_at(&self, path: &Path) -> io::Result<bool> {
        is_at(&self.0, path)
    }

    /// Makes the names in it and in the folders below it durable.
    pub(super) fn sync_all(&self) -> io::Result<()> {
        Ok(sync(&self.0)?)
    }

    /// Removes everything that is in it.
    pub(super) fn empty(&self) -> io::Result<()> {
        Ok(empty(&self.0)?)
    }
}

fn open_dir(dir: impl AsFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    fs::openat(dir, name, DIR, Mode::empty())
}

fn sync(dir: impl AsFd) -> Result<(), Errno> {
    for name in names_in(&dir)? {
        match open_dir(&dir, &name) {
            Err(Errno::NOTDIR) => {}
            below => sync(below?)?,
        }
    }
    fs::fsync(dir)
}

fn empty(dir: impl AsFd) -> Result<(), Errno> {
    for name in names_in(&dir)? {
        match fs::unlinkat(&dir, &*name, AtFlags::empty()) {
            Err(Errno::ISDIR) => {
                empty(open_dir(&dir, &name)?)?;
                fs::unlinkat(&dir, &*name, AtFlags::REMOVEDIR)?;
            }
            removed => removed?,
        }
    }
    Ok(())
}
