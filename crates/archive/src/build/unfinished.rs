//! A file that is being made: under a name of its own beside the target until it is finished.
//!
//! Invariants:
//! - Only a file that was made here is renamed or removed.
//! - The target's old file is whole until the new one takes its place, which has its mode. No
//!   program that locks volumes has it open for writing meanwhile.

use crate::{Action, Cause, Error, Place};
use lanefs::device::{FileDevice, FileOptions, errno};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fs, io};

/// See the head of the file.
#[derive(Debug)]
pub(super) struct Unfinished {
    target: PathBuf,
    /// Where it is, once it was made.
    made: Option<PathBuf>,
    /// The file that it replaces, which is locked, and its mode.
    old: Option<(FileDevice, fs::Permissions)>,
    overwrite: bool,
    keep: bool,
}

impl Unfinished {
    /// Checks that a file may be made at `target`: nothing is there, or with `overwrite` a regular
    /// file that is not in use. `keep`: it goes there even if it is never finished.
    pub(super) fn new(target: &Path, overwrite: bool, keep: bool) -> Result<Self, Error> {
        let refuse = |cause| Err(Error::new(Action::Build, host(target), cause));
        let target = match target.symlink_metadata() {
            Err(e) if e.kind() == io::ErrorKind::NotFound => target.to_owned(),
            Err(e) => return refuse(e.into()),
            Ok(_) if !overwrite => return refuse(Cause::TargetExists),
            Ok(_) => match target.canonicalize() {
                Ok(target) if target.is_file() => target,
                Ok(_) => return refuse(Cause::NotAFile),
                Err(e) => return refuse(e.into()),
            },
        };
        let old = match target.metadata() {
            Ok(meta) => match FileOptions::new().read_only(true).open(&target) {
                Ok(old) => Some((old, meta.permissions())),
                Err(e) => return refuse(Cause::Volume(e.into())),
            },
            Err(_) => None,
        };
        Ok(Self { target, made: None, old, overwrite, keep })
    }

    /// Returns where the file goes, without a symbolic link at its end.
    pub(super) fn target(&self) -> &Path {
        &self.target
    }

    /// Makes the file, of `size` bytes. One that was made before is removed.
    pub(super) fn create(&mut self, size: u64) -> Result<FileDevice, Cause> {
        if let Some(before) = self.made.take() {
            fs::remove_file(before)?;
        }
        let (path, device) = create_beside(&self.target, size)?;
        let path = self.made.insert(path);
        if let Some((_, mode)) = &self.old {
            fs::set_permissions(path, owner_may_write(mode.clone()))?;
        }
        Ok(device)
    }

    /// Returns where the file is now.
    pub(super) fn path(&self) -> &Path {
        self.made.as_deref().unwrap_or(&self.target)
    }

    /// Gives the file its name.
    pub(super) fn finish(mut self) -> Result<(), Error> {
        let Some(made) = self.made.take() else { return Ok(()) };
        let moded = self.old.take().map_or(Ok(()), |(_, mode)| fs::set_permissions(&made, mode));
        let renamed = moded.and_then(|()| rename(&made, &self.target, self.overwrite));
        renamed.map_err(|e| {
            // The error that is told is that of the name.
            let _ = fs::remove_file(&made);
            let cause = match e.kind() {
                io::ErrorKind::AlreadyExists => Cause::TargetExists,
                _ => e.into(),
            };
            Error::new(Action::Build, host(&self.target), cause)
        })
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // There is no caller to be told of a failure, and an error is on its way already.
        if let Some(made) = self.made.take()
            && !(self.keep && rename(&made, &self.target, self.overwrite).is_ok())
        {
            let _ = fs::remove_file(made);
        }
    }
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

pub(super) fn host(path: &Path) -> Place {
    Place::Host(path.as_os_str().as_encoded_bytes().to_vec())
}

/// Makes a file that no other has, in the folder of `target`. An error does not name it.
pub(super) fn create_beside(target: &Path, size: u64) -> Result<(PathBuf, FileDevice), Cause> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    loop {
        let name = format!(".lanefs-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = target.with_file_name(name);
        match FileDevice::create_new(&path, size) {
            Err(e) if e.errno() == errno::EEXIST => {}
            Ok(device) => return Ok((path, device)),
            Err(e) => return Err(io::Error::from_raw_os_error(e.errno()).into()),
        }
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
