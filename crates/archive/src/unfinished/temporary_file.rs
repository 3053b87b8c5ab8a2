//! A file under a temporary name, held open.
//!
//! The folder may belong to another user. That user may put a link under the name at any time.
//!
//! Invariants:
//! - The file is written, and its owner and mode are set, by its descriptor alone.
//! - Its name is given to the target, or removed, only where it led to this file a moment before.
//!
//! Hazard: that check and the rename or removal by name are two calls. What another process puts
//! there between them is renamed or removed.

use super::{is_at, replaced, unnamed_beside};
use crate::Cause;
use lanefs::device::{FileDevice, errno};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file that was made under a temporary name. A drop removes the file, unless it got its name.
#[derive(Debug)]
pub(crate) struct TemporaryFile {
    held: Held,
    /// The temporary name, until it is given up.
    path: Option<PathBuf>,
}

/// The open file.
#[derive(Debug)]
enum Held {
    Stream(File),
    Device(Arc<FileDevice>),
}

impl TemporaryFile {
    /// Makes a file to be written front to back, in the folder of `target`. An error does not name
    /// the file.
    pub(super) fn stream(target: &Path) -> Result<Self, Cause> {
        let (path, file) = unnamed_beside(target, |path| File::create_new(path))?;
        Ok(Self { held: Held::Stream(file), path: Some(path) })
    }

    /// Makes a file of `size` zero bytes as [`stream`](Self::stream) does. Returns its device too.
    pub(crate) fn device(target: &Path, size: u64) -> Result<(Self, Arc<FileDevice>), Cause> {
        let (path, device) = unnamed_beside(target, |path| {
            FileDevice::create_new(path, size).map_err(|e| match e.errno() {
                errno::EEXIST => io::ErrorKind::AlreadyExists.into(),
                other => io::Error::from_raw_os_error(other),
            })
        })?;
        let device = Arc::new(device);
        Ok((Self { held: Held::Device(Arc::clone(&device)), path: Some(path) }, device))
    }

    /// Returns the open file.
    pub(super) fn file(&self) -> &File {
        match &self.held {
            Held::Stream(file) => file,
            Held::Device(device) => device.file(),
        }
    }

    /// Gives the file to the owner of another file, if this user may.
    pub(super) fn give_to_owner_of(&self, attr: &fs::Metadata) {
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt;
            let _ = std::os::unix::fs::fchown(self.file(), Some(attr.uid()), Some(attr.gid()));
        }
        #[cfg(not(unix))]
        let _ = attr;
    }

    /// Gives the file the name `target`; in the place of another file only with `overwrite`.
    ///
    /// # Errors
    /// [`Cause::TargetExists`]; another process has replaced the file, and what it put there stays.
    pub(super) fn rename(&mut self, target: &Path, overwrite: bool) -> Result<(), Cause> {
        self.give_up_name(|path| {
            rename(path, target, overwrite).map_err(|e| match e.kind() {
                io::ErrorKind::AlreadyExists => Cause::TargetExists,
                _ => e.into(),
            })
        })
    }

    /// Removes the name. The file is there as long as it is open.
    ///
    /// # Errors
    /// Another process has replaced the file, and what it put there stays. Those of lstat(2) and
    /// unlink(2): a drop tries again.
    pub(crate) fn remove(&mut self) -> Result<(), Cause> {
        self.give_up_name(|path| Ok(fs::remove_file(path)?))
    }

    /// Has `give_up` take the temporary name away, if it leads to this file.
    fn give_up_name(&mut self, give_up: impl FnOnce(&Path) -> Result<(), Cause>) -> Result<(), Cause> {
        let Some(path) = &self.path else { return Ok(()) };
        let is_own = is_at(self.file(), path)?;
        if is_own {
            give_up(path)?;
        }
        self.path = None;
        if is_own { Ok(()) } else { Err(replaced()) }
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // There is no caller to be told of a failure, and an error is on its way already.
        let _ = self.remove();
    }
}

/// Renames a file; over another one only with `overwrite`.
fn rename(from: &Path, to: &Path, overwrite: bool) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    if !overwrite {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        use rustix::io::Errno;
        match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
            // The file system of the target does not know of it.
            Err(Errno::INVAL | Errno::NOSYS) => {}
            done => return Ok(done?),
        }
    }
    if !overwrite && to.symlink_metadata().is_ok() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    fs::rename(from, to)
}
