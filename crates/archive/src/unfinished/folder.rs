//! A folder that is being made: under a name of its own beside its target until it is finished.

use super::{HeldFolder, host, is_mount_point, replaced, sync_folder_of, unnamed_beside};
use crate::{Action, Cause, Error};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// A folder that is being made. Only its owner may look into it until then.
#[derive(Debug)]
pub(crate) struct UnfinishedFolder {
    target: PathBuf,
    folder: HeldFolder,
    /// Its temporary name, until it got another one.
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
        let failed = |cause| Error::new(Action::Write, host(target), cause);
        let (path, ()) = unnamed_beside(target, create_private_dir).map_err(failed)?;
        let folder = HeldFolder::of_new(&path).map_err(|cause| {
            // It is removed only if it is empty, whosever it is.
            let _ = fs::remove_dir(&path);
            failed(cause)
        })?;
        Ok(Self { target: target.into(), folder, made: Some(path), mode: None })
    }

    /// Returns the folder, to be filled.
    pub(crate) fn held(&self) -> &HeldFolder {
        &self.folder
    }

    /// Gives the folder its name, when all names in it are durable. Nothing that is there is lost:
    /// a rename replaces an empty folder only.
    ///
    /// # Errors
    /// Another process has replaced the folder, and what it put there stays. Those of fsync(2) and
    /// rename(2).
    pub(crate) fn finish(mut self) -> Result<(), Error> {
        self.give_name().map_err(|cause| Error::new(Action::Write, host(&self.target), cause))
    }

    fn give_name(&mut self) -> Result<(), Cause> {
        self.folder.sync_all()?;
        if let Some(mode) = self.mode.take() {
            self.folder.set_permissions(mode)?;
        }
        match &self.made {
            Some(path) if self.folder.is_at(path)? => fs::rename(path, &self.target)?,
            _ => return Err(replaced()),
        }
        self.made = None;
        Ok(sync_folder_of(&self.target)?)
    }
}

impl Drop for UnfinishedFolder {
    fn drop(&mut self) {
        // There is no caller to be told of a failure.
        if let Some(made) = self.made.take() {
            let _ = self.folder.empty();
            if matches!(self.folder.is_at(&made), Ok(true)) {
                let _ = fs::remove_dir(made);
            }
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
    let mode = HeldFolder::of_new(&made).and_then(|folder| Ok(folder.permissions()?));
    fs::remove_dir(made)?;
    mode
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
