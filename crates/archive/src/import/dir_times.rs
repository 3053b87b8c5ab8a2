//! Times of directories. Every name that comes or goes changes the time of its directory, so the
//! import sets it again when it leaves the directory.
//!
//! The time is kept on the volume alone: memory is a bit for each directory that the source names.

use super::number_set::NumberSet;
use lanefs::{Dir, SetAttr, SetTime, Timestamp};

/// The directories whose time the source gives.
#[derive(Debug, Default)]
pub(super) struct DirTimes(NumberSet);

impl DirTimes {
    /// Notes that a directory has the time that the source gives.
    pub(super) fn give(&mut self, ino: u32) {
        self.0.insert(ino.into());
    }

    /// Forgets an inode that was removed.
    pub(super) fn forget(&mut self, ino: u32) {
        self.0.remove(ino.into());
    }

    /// Returns the time that a directory has and must keep, if the source gave it.
    pub(super) fn of(&self, dir: &Dir) -> Option<Timestamp> {
        let meta = dir.metadata();
        self.0.contains(meta.ino().into()).then(|| meta.mtime())
    }
}

/// Sets the time of a directory that must have one, if it has changed.
pub(super) fn set_again(dir: &Dir, mtime: Option<Timestamp>) -> lanefs::Result<()> {
    let Some(mtime) = mtime.filter(|mtime| dir.metadata().mtime() != *mtime) else { return Ok(()) };
    let time = Some(SetTime::At(mtime));
    dir.node().set_attr(&SetAttr { atime: time, mtime: time, ..SetAttr::default() })
}
