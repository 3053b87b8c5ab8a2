//! fsync and fdatasync.
//!
//! The file knows what must become durable: the last transaction that changed its inode, the last
//! one that changed its map or i_disksize, and the flush that covers data written past the journal.
//! The first flush of a commit covers data written before it. So most calls wait for one commit or
//! one flush, which they share with other threads that sync.

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

/// Writes the pending times into the inode.
pub(crate) fn write_times(node: &Node) -> Result<()> {
    node.fs.combine(node, Work::default()).1
}

/// Whether times are pending that the inode does not have yet. A thread that moves them into it,
/// under its own handle, holds the inode's lock until it has noted its transaction or has put them
/// back.
fn has_pending_times(node: &Node) -> bool {
    let _told = node.state();
    node.file_if_used().is_some_and(|file| file.times.is_pending())
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
    // A node whose content was not used has written nothing, but an evicted node of the inode may
    // have.
    let unflushed = file.map_or_else(|| fs.unflushed(), FileData::unflushed);
    Ok(fs.journal.flush(unflushed)?)
}
