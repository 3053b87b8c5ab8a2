//! Files of this machine, written so that nothing outside of a target is touched.
//!
//! A [`Folder`] is an open directory. Names below it are resolved from its descriptor by `openat2`,
//! beneath it and through no symbolic link. An [`Object`] is one inode, held open.
//!
//! Invariants:
//! - Only the target that the user named is resolved as a path, and only there is a link followed.
//! - A new file is made with `O_EXCL`: no other process has it open, and it has no second name.
//! - Owner, mode, times and attributes are set by descriptor, never by name, so a process that
//!   renames a new file does not redirect them.
//! - A guard sees every file before it is emptied or replaced.
//! - The number of descriptors does not grow with the depth of a tree.
//!
//! Hazard: a directory that is opened again by its path may be another one by then. A caller that
//! sets what a directory has compares its [`Identity`].

mod attributes;
mod error;
mod folder;
mod guard;
mod new_name;
mod object;

pub(crate) use attributes::{Attributed, data_ranges};
pub use error::{Error, Protected, Result};
pub(crate) use folder::names_in;
pub use folder::{Folder, c_name};
pub(crate) use new_name::NewName;
pub use object::{Identity, Object};

use rustix::fs::{self, Mode, OFlags};
use rustix::io::Errno;
use std::path::Path;

/// How a file that the user named is opened.
const TO_WRITE: OFlags = OFlags::WRONLY.union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// The files and devices that may be overwritten.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Overwrite {
    /// Everything but volumes, files that another process has locked, and devices in use.
    #[default]
    NoVolumes,
    /// Everything but volumes that this process has open.
    All,
}

/// Opens the file that the user named for writing, empty. A link is followed, a device or a pipe
/// is written to. `keep`: an existing file stays the same inode; else it is replaced unless it is
/// this user's alone, because another process may have it open.
///
/// # Errors
/// [`Error::Protected`]: what is there may not be overwritten. [`Error::DanglingLink`]; those of
/// open(2), ftruncate(2) and unlink(2).
pub fn create_named(path: &Path, mode: u32, keep: bool, overwrite: Overwrite) -> Result<Object> {
    if let Some(object) = open_named(path, overwrite)? {
        if keep || object.is_ours_alone()? {
            object.empty()?;
            return Ok(object);
        }
        fs::unlink(path)?;
    }
    let flags = TO_WRITE | OFlags::CREATE | OFlags::EXCL;
    Ok(Object::open(fs::open(path, flags, Mode::from_raw_mode(mode & 0o777))?))
}

/// Opens for writing what is at the path that the user named, `None` if nothing is. A link is
/// followed.
///
/// # Errors
/// [`Error::Protected`]: it may not be overwritten. [`Error::DanglingLink`]; those of open(2).
pub(crate) fn open_named(path: &Path, overwrite: Overwrite) -> Result<Option<Object>> {
    match fs::open(path, TO_WRITE, Mode::empty()) {
        Ok(fd) => {
            let object = Object::open(fd);
            guard::check(&object, overwrite)?;
            Ok(Some(object))
        }
        Err(Errno::NOENT) if path.is_symlink() => Err(Error::DanglingLink),
        Err(Errno::NOENT) => Ok(None),
        Err(e) => Err(e.into()),
    }
}
