//! fsync and fdatasync.
//!
//! What must be durable is known to the file: the last transaction that changed its inode, the last
//! one that changed its map or i_disksize, and the flush that covers what was written past the
//! journal. A commit's own first flush covers data written before it, so that most calls wait for
//! one thing only, together with all others who wait for it.

use super::FileData;
use super::plan::Work;
use super::writeback::write_back_synced;
use crate::error::Result;
use crate::fs::Fs;
use crate::fs::inode::Node;

/// Makes content, size and times durable.
///
/// # Errors
/// The journal's or the device's.
pub(crate) fn sync_all(node: &Node) -> Result<()> {
    let _timer = node.fs.counters.fsync.start();
    let Some(file) = node.file_if_used() else { return commit(node, None, true) };
    write_back_synced(node)?;
    if has_pending_times(node) && !node.fs.is_read_only() {
        node.fs.combine(node, Work::synced()).1?;
    }
    commit(node, Some(file), true)
}

/// Makes content and size durable.
///
/// # Errors
/// As [`sync_all`].
pub(crate) fn sync_data(node: &Node) -> Result<()> {
    let _timer = node.fs.counters.fdatasync.start();
    write_back_synced(node)?;
    commit(node, node.file_if_used(), false)
}

/// Tells the inode of the times that are pending.
pub(crate) fn write_times(node: &Node) -> Result<()> {
    node.fs.combine(node, Work::default()).1
}

/// Whether the inode has yet to be told of times. A thread that moves them into it, under its own
/// handle, holds the inode's lock until it has noted its transaction, or has put them back.
fn has_pending_times(node: &Node) -> bool {
    let _told = node.state();
    node.file_if_used().is_some_and(|file| file.times.is_pending())
}

impl Fs {
    /// Writes all times that are pending to their inodes.
    ///
    /// # Errors
    /// The first that is met; the times of other files are written, and those that failed stay
    /// noted.
    pub(crate) fn write_all_times(self: &Fs) -> Result<()> {
        let mut first = Ok(());
        for (ino, round) in self.list_dirty_times() {
            // Nodes with pending times stay in memory.
            let pending = self.known_node(ino).filter(|node| has_pending_times(node));
            match pending.map_or(Ok(()), |node| write_times(&node)) {
                Ok(()) => self.forget_dirty_times(ino, round),
                Err(e) => first = first.and(Err(e)),
            }
        }
        first
    }
}

fn commit(node: &Node, file: Option<&FileData>, all: bool) -> Result<()> {
    let fs = &*node.fs;
    if fs.is_read_only() {
        return Ok(());
    }
    node.durable.commit(&fs.journal, all)?;
    // A node without a state of its content has written nothing; one that was evicted may have.
    let unflushed = file.map_or_else(|| fs.unflushed(), FileData::unflushed);
    Ok(fs.journal.flush(unflushed)?)
}
