//! Looks names up and lists them.

use super::{check_name, is_dots};
use crate::error::{Corrupt, Error, Result};
use crate::fs::Fs;
use crate::fs::inode::{CachedInode, InodeRef};
use crate::store::ROOT_INO;
use crate::store::dir::{self, ListedEntry};
use std::ops::ControlFlow;
use std::sync::Arc;

impl Fs {
    /// Returns the root directory.
    pub(crate) fn root(self: &Arc<Self>) -> Result<InodeRef> {
        let root = self.inode(ROOT_INO)?;
        if !root.is_dir() {
            return Err(Corrupt::SpecialInode { ino: ROOT_INO, role: "root", rule: "is no directory" }.into());
        }
        Ok(root)
    }
}

impl CachedInode {
    /// Returns the inode that `name` leads to in this directory.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDir`], and those of a damaged directory.
    pub(crate) fn lookup(&self, name: &[u8]) -> Result<InodeRef> {
        check_name(name)?;
        let _shared = self.share();
        self.lookup_locked(name)?.ok_or(Error::NotFound)
    }

    /// Looks up as [`lookup`](Self::lookup) does; the caller holds the directory's lock.
    pub(super) fn lookup_locked(&self, name: &[u8]) -> Result<Option<InodeRef>> {
        match find(self, name)? {
            Some(ino) => Ok(Some(self.fs.inode(ino)?)),
            None => Ok(None),
        }
    }

    /// Calls `each` for the entries of this directory from `cookie` on, until it breaks. Cookie 0
    /// is the start; an entry's cookie continues behind it, whatever other threads make or remove
    /// meanwhile.
    pub(crate) fn read_dir(
        &self,
        cookie: u64,
        each: &mut dyn FnMut(ListedEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let _shared = self.share();
        let state = self.state();
        if !state.is_dir() {
            return Err(Error::NotDir);
        }
        dir::read_dir(&self.fs, &state, cookie, each)
    }
}

/// Looks up a name that is to be made. The caller holds the directory's lock.
pub(super) fn find_name(dir: &CachedInode, name: &[u8]) -> Result<dir::Lookup> {
    let state = dir.state();
    if !state.is_dir() {
        return Err(Error::NotDir);
    }
    dir::find(&dir.fs, &state, name)
}

/// Returns the inode number of `name`. The caller holds the directory's lock.
pub(super) fn find(dir: &CachedInode, name: &[u8]) -> Result<Option<u32>> {
    Ok(find_entry(dir, name)?.map(|found| found.ino))
}

/// Returns the entry of `name`, its inode number checked. The caller holds the directory's lock.
pub(super) fn find_entry(dir: &CachedInode, name: &[u8]) -> Result<Option<dir::FoundEntry>> {
    let state = dir.state();
    if !state.is_dir() {
        return Err(Error::NotDir);
    }
    let Some(found) = dir::lookup(&dir.fs, &state, name)? else { return Ok(None) };
    drop(state);
    dir.fs.check_named(found.ino)?;
    if found.ino == dir.ino && !is_dots(name) {
        return Err(Corrupt::SpecialInode {
            ino: dir.ino,
            role: "directory",
            rule: "holds itself under a name",
        }
        .into());
    }
    Ok(Some(found))
}
