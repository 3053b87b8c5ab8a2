//! A file that is being made: under a name of its own beside the target until it is finished.
//!
//! Invariants:
//! - Only a file that was made here is renamed or removed.
//! - The target's old file is whole until the new one takes its place, which has its mode, and its
//!   owner if this user may give files away. No program that locks volumes has it open for writing
//!   meanwhile.

use crate::{Action, Cause, Error, Place};
use lanefs::device::{FileDevice, FileOptions, errno, is_open_here};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fs, io};

/// A file that is being made.
#[derive(Debug)]
pub(crate) struct Unfinished {
    target: PathBuf,
    /// Where it is, once it was made.
    made: Option<PathBuf>,
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

    /// Makes the file, of `size` bytes. One that was made before is removed.
    pub(crate) fn create(&mut self, size: u64) -> Result<FileDevice, Cause> {
        if let Some(before) = self.made.take() {
            fs::remove_file(before)?;
        }
        let (path, device) = create_beside(&self.target, size)?;
        self.made(path)?;
        Ok(device)
    }

    /// Makes the file, to be written front to back.
    pub(crate) fn create_stream(&mut self) -> Result<fs::File, Cause> {
        let (path, file) = unnamed_beside(&self.target, |path| fs::File::create_new(path))?;
        self.made(path)?;
        Ok(file)
    }

    fn made(&mut self, path: PathBuf) -> Result<(), Cause> {
        let path = self.made.insert(path);
        match &self.attr {
            Some(attr) => {
                give_to_owner_of(attr, path);
                Ok(fs::set_permissions(path, owner_may_write(attr.permissions()))?)
            }
            None => Ok(()),
        }
    }

    /// Returns where the file is now.
    pub(crate) fn path(&self) -> &Path {
        self.made.as_deref().unwrap_or(&self.target)
    }

    /// Gives the file its name.
    pub(crate) fn finish(mut self) -> Result<(), Error> {
        let Some(made) = self.made.take() else { return Ok(()) };
        drop(self.old.take());
        let moded = self.attr.take().map_or(Ok(()), |attr| fs::set_permissions(&made, attr.permissions()));
        let renamed = moded.and_then(|()| rename(&made, &self.target, self.overwrite));
        let renamed = renamed.and_then(|()| sync_folder_of(&self.target));
        renamed.map_err(|e| {
            // The error that is told is that of the name.
            let _ = fs::remove_file(&made);
            let cause = match e.kind() {
                io::ErrorKind::AlreadyExists => Cause::TargetExists,
                _ => e.into(),
            };
            Error::new(self.action, host(&self.target), cause)
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

/// Gives a file to the owner of another one, if this user may.
fn give_to_owner_of(attr: &fs::Metadata, path: &Path) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let _ = std::os::unix::fs::chown(path, Some(attr.uid()), Some(attr.gid()));
    }
    #[cfg(not(unix))]
    let _ = (attr, path);
}

/// Makes the name of a file durable. A folder that this user may not read is left as it is.
fn sync_folder_of(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    match sync_folder(folder.unwrap_or(Path::new("."))) {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        synced => synced,
    }
}

/// Makes the names in a folder and the folders below it durable.
fn sync_folders(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_folders(&entry.path())?;
        }
    }
    sync_folder(path)
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

/// Makes a file that no other has, in the folder of `target`. An error does not name it.
pub(crate) fn create_beside(target: &Path, size: u64) -> Result<(PathBuf, FileDevice), Cause> {
    unnamed_beside(target, |path| {
        FileDevice::create_new(path, size).map_err(|e| match e.errno() {
            errno::EEXIST => io::ErrorKind::AlreadyExists.into(),
            other => io::Error::from_raw_os_error(other),
        })
    })
}

/// Has `make` make something under a temporary name, in the folder of `target`.
fn unnamed_beside<T>(target: &Path, make: impl Fn(&Path) -> io::Result<T>) -> Result<(PathBuf, T), Cause> {
    let made = under_temporary_name(|name| {
        let path = target.with_file_name(name);
        make(&path).map(|made| (path, made))
    });
    Ok(made?)
}

/// Has `make` make something under a name that nothing else has, `.lanefs-PID-NUMBER`. `make` is
/// called again with the next name as long as its error is that the name exists.
pub(crate) fn under_temporary_name<T>(make: impl Fn(String) -> io::Result<T>) -> io::Result<T> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    loop {
        let name = format!(".lanefs-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        match make(name) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made,
        }
    }
}

/// A folder that is being made, under a name of its own beside its target. Only its owner may look
/// into it until then.
#[derive(Debug)]
pub(crate) struct UnfinishedFolder {
    target: PathBuf,
    made: Option<PathBuf>,
    /// The mode that it gets with its name.
    mode: Option<fs::Permissions>,
}

impl UnfinishedFolder {
    /// Makes the folder. Nothing may be at `target`, or an empty folder, whose mode it gets.
    pub(crate) fn new(target: &Path) -> Result<Self, Error> {
        let failed = |cause| Error::new(Action::Write, host(target), cause);
        if target.symlink_metadata().is_ok() {
            if !is_empty_folder(target) {
                return Err(failed(Cause::TargetExists));
            }
            if cannot_be_replaced(target).map_err(|e| failed(e.into()))? {
                return Err(failed(Cause::TargetStays));
            }
        }
        // `a/` too is `a` beside its neighbours.
        let beside: PathBuf = target.components().collect();
        let mode = mode_of(&beside).map_err(failed)?;
        let mut folder = Self::scratch(&beside)?;
        folder.mode = Some(mode);
        Ok(folder)
    }

    /// Makes a folder for what is only needed meanwhile, beside `target`.
    pub(crate) fn scratch(target: &Path) -> Result<Self, Error> {
        match unnamed_beside(target, create_private_dir) {
            Ok((path, ())) => Ok(Self { target: target.into(), made: Some(path), mode: None }),
            Err(cause) => Err(Error::new(Action::Write, host(target), cause)),
        }
    }

    /// Returns where the folder is now.
    pub(crate) fn path(&self) -> &Path {
        self.made.as_deref().unwrap_or(&self.target)
    }

    /// Gives the folder its name, when all names in it are durable. Nothing that is there is lost:
    /// a rename replaces an empty folder only.
    pub(crate) fn finish(mut self) -> Result<(), Error> {
        let synced = sync_folders(self.path());
        let mode = synced.map(|()| self.mode.take());
        let moded = mode.and_then(|mode| mode.map_or(Ok(()), |mode| fs::set_permissions(self.path(), mode)));
        let renamed = moded.and_then(|()| fs::rename(self.path(), &self.target));
        renamed.map_err(|e| Error::new(Action::Write, host(&self.target), e))?;
        self.made = None;
        sync_folder_of(&self.target).map_err(|e| Error::new(Action::Write, host(&self.target), e))
    }
}

impl Drop for UnfinishedFolder {
    fn drop(&mut self) {
        // There is no caller to be told of a failure.
        if let Some(made) = self.made.take() {
            let _ = fs::remove_dir_all(made);
        }
    }
}

/// Makes a folder that only its owner may look into.
fn create_private_dir(path: &Path) -> io::Result<()> {
    #[cfg_attr(not(unix), allow(unused_mut, reason = "only Unix has modes"))]
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// Returns the mode of the folder at `path`, or that of a new one there.
fn mode_of(path: &Path) -> Result<fs::Permissions, Cause> {
    if let Ok(meta) = path.metadata() {
        return Ok(meta.permissions());
    }
    let (made, ()) = unnamed_beside(path, |path| fs::create_dir(path))?;
    let meta = fs::metadata(&made);
    fs::remove_dir(made)?;
    Ok(meta?.permissions())
}

/// Returns whether no other folder can take the place of the one at `path`: it is a mount point, or
/// the working directory of this process, which would be left in a folder without a name.
fn cannot_be_replaced(path: &Path) -> io::Result<bool> {
    let real = path.canonicalize()?;
    #[cfg_attr(not(unix), allow(unused_variables, reason = "only Unix has device numbers"))]
    let Some(parent) = real.parent() else { return Ok(true) };
    if is_mount_point(&real) {
        return Ok(true);
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        if real.metadata()?.dev() != parent.metadata()?.dev() {
            return Ok(true);
        }
    }
    Ok(path.file_name().is_none() || std::env::current_dir().is_ok_and(|here| here == real))
}

fn is_empty_folder(path: &Path) -> bool {
    !path.is_symlink() && fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
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
