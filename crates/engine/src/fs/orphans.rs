//! Finishes the orphans that a crash left: deletes those without a name, and truncates the others
//! to their size.

use super::Fs;
use crate::error::Result;
use crate::store::orphan;
use crate::store::txn::credits;
use lanefs_format::InodeFlags;
use std::sync::Arc;

impl Fs {
    /// Reads the orphans of a volume just opened for writing, and finishes each.
    ///
    /// # Errors
    /// The device's and the journal's: the orphans that are left stay orphans. Damage is noted.
    pub(super) fn finish_orphans(self: &Arc<Self>) -> Result<()> {
        for ino in orphan::load(self)? {
            match self.finish_orphan(ino) {
                Err(e) if e.is_of_medium() || self.journal.has_ended() => return Err(e),
                // A damaged inode stays an orphan: the volume can be used all the same.
                Err(e) => self.note_error(&e),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    fn finish_orphan(self: &Arc<Self>, ino: u32) -> Result<()> {
        let node = self.orphan_inode(ino)?;
        if node.state().links_count == 0 {
            node.delete()?;
            return Ok(());
        }
        // The blocks behind i_size are its hash tree.
        if !node.flags().contains(InodeFlags::VERITY) {
            node.truncate_tail()?;
        }
        let prepared = node.prepare()?;
        self.transact(credits::INODE + credits::ORPHAN, |txn| {
            prepared.update(txn, |txn, inode| orphan::settle(txn, inode))
        })
    }
}
