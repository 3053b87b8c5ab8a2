//! The end of an open volume.
//!
//! Order: changes are refused first; then dirty pages, the journal, and at last the superblock are
//! written, and the device is flushed.
//!
//! Hazard: a close that fails leaves the volume as a crash does. It is not marked clean, and the
//! next open recovers it.

use super::Fs;
use super::mmp::HostClaim;
use crate::error::Result;
use crate::store::write_super;
use lanefs_format::State;

impl Fs {
    /// Makes everything durable.
    ///
    /// # Errors
    /// The journal's, or the first of a file. Everything that can be committed is committed.
    pub(crate) fn sync(&self) -> Result<()> {
        let written = self.write_files();
        self.journal.sync()?;
        written
    }

    /// Writes out all dirty pages and pending times, of every file.
    fn write_files(&self) -> Result<()> {
        let written = self.write_back_together();
        let told = self.write_all_times();
        written.and(told)
    }

    /// Refuses changes with [`Error::Closed`] from now on, waits for those of content that have
    /// begun, makes everything durable, empties the log, marks the volume as clean, and gives back
    /// the claim of multiple mount protection.
    ///
    /// # Errors
    /// The journal's or the device's: the volume then needs recovery. If files could not be
    /// written, that of the first one: everything else is durable, and the volume is closed.
    pub(crate) fn close(&self) -> Result<()> {
        let _alone = self.closing.lock();
        if self.is_closed() {
            return Ok(());
        }
        let closed = self.close_store();
        // Whatever became of the close: this host writes nothing more.
        let released = self.claim.as_ref().map_or(Ok(()), HostClaim::release);
        let closed = closed.and(released);
        if closed.is_ok()
            && let Some(claim) = &self.claim
        {
            claim.closed();
        }
        closed
    }

    fn close_store(&self) -> Result<()> {
        // First: what is accepted behind the writing out of its file would be lost.
        self.writers.refuse();
        self.flusher.stop();
        let written = if self.is_read_only() { Ok(()) } else { self.write_files() };
        self.set_closed();
        self.inodes.clear_unused();
        if self.is_read_only() {
            return Ok(());
        }
        self.journal.close()?;
        let mut sb = self.sb.lock();
        sb.set_free_blocks_count(self.alloc.free_on_disk());
        sb.set_free_inodes_count(self.alloc.free_inodes() as u32);
        sb.set_recover(false);
        if self.orphans.is_empty() {
            sb.set_orphan_present(false);
        }
        let state =
            if self.has_noted_error() { self.state_at_open | State::ERROR_FS } else { self.state_at_open };
        sb.set_state(state);
        sb.set_wtime(self.now().sec.max(0) as u64);
        write_super(&*self.device, &sb)?;
        self.device.flush()?;
        written
    }
}

impl Drop for Fs {
    fn drop(&mut self) {
        // A caller that needs the errors calls `Volume::close`. A failed close leaves the volume as
        // a crash does: the next open recovers it.
        let _ = self.close();
    }
}
