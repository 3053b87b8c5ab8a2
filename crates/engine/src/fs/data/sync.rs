//! fsync and fdatasync.
//!
//! The file knows what must become durable: the last transaction that changed its inode, the last
//! one that changed its map or i_disksize, and the flush that covers data written past the journal.
//! The first flush of a commit covers data written before it. So most calls wait for one commit or
//! one flush, which they share with other threads that sync.

use super::FileData;
use super::plan::Work;
use crate::error::Result;
use crate::fs::Fs;
use crate::fs::inode::CachedInode;

impl CachedInode {
    /// Makes content, size and times durable.
    ///
    /// # Errors
    /// The journal's or the device's.
    pub(crate) fn sync_all(&self) -> Result<()> {
        let _timer = self.fs.counters.fsync.start();
        let Some(content) = self.content_if_used() else { return self.commit(true) };
        content.write_back_synced()?;
        if self.has_pending_times() && !self.fs.is_read_only() {
            self.fs.combine(self, Work::synced()).1?;
        }
        self.commit(true)
    }

    /// Makes content and size durable.
    ///
    /// # Errors
    /// As [`sync_all`](Self::sync_all).
    pub(crate) fn sync_data(&self) -> Result<()> {
        let _timer = self.fs.counters.fdatasync.start();
        if let Some(content) = self.content_if_used() {
            content.write_back_synced()?;
        }
        self.commit(false)
    }

    /// Writes the pending times into the inode.
    pub(crate) fn write_times(&self) -> Result<()> {
        self.fs.combine(self, Work::default()).1
    }

    /// Returns whether times are pending that the inode does not have yet. A thread that moves them
    /// into it, under its own handle, holds the inode's lock until it has noted its transaction or
    /// has put them back.
    fn has_pending_times(&self) -> bool {
        let _told = self.state();
        self.file_if_used().is_some_and(|file| file.times.is_pending())
    }

    fn commit(&self, all: bool) -> Result<()> {
        let fs = &*self.fs;
        if fs.is_read_only() {
            return Ok(());
        }
        self.durable.commit(&fs.journal, all)?;
        // An inode whose content was not used has written nothing since it was cached, but before
        // that it may have.
        let unflushed = self.file_if_used().map_or_else(|| fs.unflushed(), FileData::unflushed);
        Ok(fs.journal.flush(unflushed)?)
    }
}

impl Fs {
    /// Writes all times that are pending to their inodes.
    ///
    /// # Errors
    /// The first of any file. The times of other files are written; a file that failed stays in the
    /// list.
    pub(crate) fn write_all_times(self: &Fs) -> Result<()> {
        let mut first = Ok(());
        for (ino, round) in self.list_dirty_times() {
            // Inodes with pending times stay in memory.
            let pending = self.known_inode(ino).filter(|node| node.has_pending_times());
            match pending.map_or(Ok(()), |node| node.write_times()) {
                Ok(()) => self.forget_dirty_times(ino, round),
                Err(e) => first = first.and(Err(e)),
            }
        }
        first
    }
}
