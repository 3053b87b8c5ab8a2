//! A file that is being made: under a name of its own beside the target until it is finished.
//!
//! Invariants:
//! - Only a file that was made here is written. By its temporary name it is renamed or removed only
//!   where that led to it a moment before ([`TemporaryFile`]).
//! - The target's old file is whole until the new one takes its place, which has its mode, and its
//!   owner if this user may give files away. No program that locks volumes has it open for writing
//!   meanwhile.

mod folder;
#[cfg(target_os = "linux")]
mod held_folder;
#[cfg(not(target_os = "linux"))]
mod named_folder;
mod temporary_file;

pub(crate) use folder::UnfinishedFolder;
#[cfg(target_os = "linux")]
pub(crate) use held_folder::HeldFolder;
#[cfg(not(target_os = "linux"))]
pub(crate) use named_folder::HeldFolder;
pub(crate) use temporary_file::TemporaryFile;

use crate::temporary_name::under_temporary_name;
use crate::{Action, Cause, Error, Place};
use lanefs::device::{FileDevice, FileOptions, is_open_here};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

/// A file that is being made.
#[derive(Debug)]
pub(crate) struct Unfinished {
    target: PathBuf,
    /// The new file, once it was made.
    made: Option<TemporaryFile>,
    /// The file that it replaces, locked.
    old: Option<FileDevice>,
    /// The attributes of that file.
    attr: Option<fs::Metadata>,
    /// What is done, for errors.
    action: Action,
    overwrite: bool,
    keep: bool,
}

impl Unfinished {
    /// Checks that a file may be made at `target`: nothing is there, or with `overwrite` a regular
    /// file that is not in use and no volume that this process has open. `keep`: it goes there even
    /// if it is never finished.
    pub(crate) fn new(target: &Path, action: Action, overwrite: bool, keep: bool) -> Result<Self, Error> {
        let refuse = |cause| Err(Error::new(action, host(target), cause));
        let target = match target.symlink_metadata() {
            Err(e) if e.kind() == io::ErrorKind::NotFound => target.to_owned(),
            Err(e) => return refuse(e.into()),
            Ok(_) if !overwrite => return refuse(Cause::TargetExists),
            Ok(_) => match target.canonicalize() {
                Ok(target) if is_open_here(&target) => return refuse(Cause::TargetIsSource),
                Ok(target) if target.is_file() => target,
                Ok(_) => return refuse(Cause::NotAFile),
                Err(e) => return refuse(e.into()),
            },
        };
        // An empty file is no device that a program could have open.
        let old = match target.metadata() {
            Ok(meta) if meta.len() > 0 => match FileOptions::new().read_only(true).open(&target) {
                Ok(old) => Some(old),
                Err(e) => return refuse(Cause::Volume(e.into())),
            },
            _ => None,
        };
        let attr = attributes(&target).map_err(|cause| Error::new(action, host(&target), cause))?;
        Ok(Self { target, made: None, old, attr, action, overwrite, keep })
    }

    /// Returns a file that replaces what is at `target`, which the caller has looked at: a regular
    /// file, or nothing.
    #[cfg(target_os = "linux")]
    pub(crate) fn replacing(target: &Path, action: Action) -> Result<Self, Cause> {
        let target = target.canonicalize().unwrap_or_else(|_| target.to_owned());
        let attr = attributes(&target)?;
        Ok(Self { target, made: None, old: None, attr, action, overwrite: true, keep: false })
    }

    /// Returns where the file goes, without a symbolic link at its end.
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// Makes the file, of `size` zero bytes. One that was made before is removed.
    ///
    /// # Errors
    /// Another process has replaced that one.
    pub(crate) fn create(&mut self, size: u64) -> Result<Arc<FileDevice>, Cause> {
        if let Some(mut before) = self.made.take() {
            before.remove()?;
        }
        let (file, device) = TemporaryFile::device(&self.target, size)?;
        self.take(file)?;
        Ok(device)
    }

    /// Makes the file, to be written front to back.
    pub(crate) fn create_stream(&mut self) -> Result<&fs::File, Cause> {
        let file = TemporaryFile::stream(&self.target)?;
        Ok(self.take(file)?.file())
    }

    /// Takes the new file, and gives it what the file has that it replaces.
    fn take(&mut self, file: TemporaryFile) -> Result<&TemporaryFile, Cause> {
        let made = self.made.insert(file);
        if let Some(attr) = &self.attr {
            made.give_to_owner_of(attr);
            made.file().set_permissions(owner_may_write(attr.permissions()))?;
        }
        Ok(made)
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// [`Cause::TargetExists`]; another process has replaced the new file; those of chmod(2),
    /// rename(2) and fsync(2).
    pub(crate) fn finish(mut self) -> Result<(), Error> {
        let Some(made) = self.made.take() else { return Ok(()) };
        drop(self.old.take());
        self.give_name(made).map_err(|cause| Error::new(self.action, host(&self.target), cause))
    }

    fn give_name(&self, mut made: TemporaryFile) -> Result<(), Cause> {
        if let Some(attr) = &self.attr {
            made.file().set_permissions(attr.permissions())?;
        }
        made.rename(&self.target, self.overwrite)?;
        Ok(sync_folder_of(&self.target)?)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if self.keep
            && let Some(made) = &mut self.made
        {
            // There is no caller to be told of a failure, and an error is on its way already.
            let _ = made.rename(&self.target, self.overwrite);
        }
    }
}

/// Returns the failure of a call that found something else under the temporary name of what was
/// made here.
fn replaced() -> Cause {
    #[cfg(target_os = "linux")]
    {
        crate::host::Error::Replaced.into()
    }
    #[cfg(not(target_os = "linux"))]
    {
        Cause::Changed
    }
}

/// Returns whether a name leads to this file or folder, and not to what another process has put
/// there. Only Unix tells; elsewhere a file is what has its path.
fn is_at(file: &fs::File, path: &Path) -> io::Result<bool> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let number = |meta: fs::Metadata| (meta.dev(), meta.ino());
        match path.symlink_metadata() {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            found => Ok(number(found?) == number(file.metadata()?)),
        }
    }
    #[cfg(not(unix))]
    {
        let _ = (file, path);
        Ok(true)
    }
}

/// Returns the attributes of the file at `path`, if there is one, which another file can replace.
fn attributes(path: &Path) -> Result<Option<fs::Metadata>, Cause> {
    if is_mount_point(path) { Err(Cause::TargetMounted) } else { Ok(path.metadata().ok()) }
}

/// Returns whether something is mounted at `path`, a file or a folder. An old kernel does not tell.
fn is_mount_point(path: &Path) -> bool {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
        statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::TYPE)
            .is_ok_and(|stat| stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = path;
        false
    }
}

/// Makes the name of a file durable. A folder that this user may not read is left as it is.
fn sync_folder_of(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    match sync_folder(folder.unwrap_or(Path::new("."))) {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        synced => synced,
    }
}

/// Makes the names in a folder durable.
fn sync_folder(path: &Path) -> io::Result<()> {
    #[cfg(unix)]
    fs::File::open(path)?.sync_all()?;
    #[cfg(not(unix))]
    let _ = path;
    Ok(())
}

/// Returns the mode of a file that its owner still writes to.
fn owner_may_write(mode: fs::Permissions) -> fs::Permissions {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        fs::Permissions::from_mode(mode.mode() | 0o600)
    }
    #[cfg(not(unix))]
    mode
}

pub(crate) fn host(path: &Path) -> Place {
    Place::Host(path.as_os_str().as_encoded_bytes().to_vec())
}

/// Has `make` make something under a temporary name, in the folder of `target`.
fn unnamed_beside<T>(target: &Path, make: impl Fn(&Path) -> io::Result<T>) -> Result<(PathBuf, T), Cause> {
    let made = under_temporary_name(|name| {
        let path = target.with_file_name(name);
        make(&path).map(|made| (path, made))
    });
    Ok(made?)
}
