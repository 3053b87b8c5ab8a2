//! The journal as its users see it.

use crate::core::Core;
use crate::{Buffer, Handle, JournalError, Options, Result, Stats, Ticket, Tid};
use lanefs_device::BlockDevice;
use lanefs_sync::thread::{self, JoinHandle};
use std::fmt;
use std::sync::Arc;

/// Transactions over a cache of a volume's metadata blocks. Shared between threads.
///
/// Dropping a journal without [`close`](Self::close) commits nothing, as a crash would.
pub struct Journal {
    pub(crate) core: Arc<Core>,
    threads: Vec<JoinHandle<()>>,
}

impl Journal {
    /// Opens the journal of a volume whose log has been [recovered](crate::recovery). Opened
    /// read-only, it does not look at the log, and never writes.
    ///
    /// # Errors
    /// The device's failure; a journal superblock that cannot be used; a log that needs recovery; a
    /// log of less than 1024 blocks.
    pub fn open(device: Arc<dyn BlockDevice>, options: Options) -> Result<Self> {
        let mut journal = Self { core: Arc::new(Core::open(device, options)?), threads: Vec::new() };
        if !journal.core.is_read_only() {
            journal.spawn("lanefs-commit", |core| {
                core.background.run_commits(
                    || core.commit_deadline(),
                    |tid| drop(core.commit_now(tid.unwrap_or(core.gate.running().tid))),
                );
            })?;
            journal.spawn("lanefs-ckpt", |core| {
                core.background.run_checkpoints(|| drop(core.make_room()));
            })?;
        }
        Ok(journal)
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce(&Core) + Send + 'static) -> Result<()> {
        let core = Arc::clone(&self.core);
        let spawned = thread::Builder::new().name(name.into()).spawn(move || run(&core));
        self.threads.push(spawned.map_err(|e| JournalError::Thread(Arc::new(e)))?);
        Ok(())
    }

    /// The block's content, from the cache or the device.
    ///
    /// # Errors
    /// The device's failure; a block outside of the volume.
    pub fn read(&self, block: u64) -> Result<Buffer> {
        self.core.read(block)
    }

    /// Starts a handle that may touch `credits` blocks, at least one. Waits while a commit closes
    /// the running transaction, or for space in the log.
    ///
    /// # Errors
    /// A read-only, closed or aborted journal; more than [`max_credits`](Self::max_credits).
    pub fn start(&self, credits: u32) -> Result<Handle<'_>> {
        let credits = credits.max(1);
        Ok(Handle::new(self, self.core.enter(credits)?, credits))
    }

    /// The most credits that a handle can have.
    pub fn max_credits(&self) -> u32 {
        self.core.max_credits()
    }

    /// How many of the metadata blocks given back by [`Handle::free`] one credit pays for.
    pub fn revokes_per_credit(&self) -> u32 {
        self.core.log.as_ref().map_or(u32::MAX, |log| log.revokes_per_block())
    }

    /// The transaction that a handle started now would join.
    pub fn running(&self) -> Tid {
        self.core.gate.running().tid
    }

    /// Whether transaction `tid` is durable. One atomic load.
    pub fn is_durable(&self, tid: Tid) -> bool {
        self.core.is_durable(tid)
    }

    /// Returns when transaction `tid` is durable; at once if it is already. Waits for the handles
    /// that are in it, so the caller must not hold one.
    ///
    /// # Errors
    /// An aborted journal, or the failure that aborts it.
    pub fn commit(&self, tid: Tid) -> Result<()> {
        self.core.commit(tid).map(drop)
    }

    /// Makes all that handles did, and all data written before the call, durable. It waits for the
    /// handles that are open: what one of them has changed another thread may have seen, and relied
    /// on. Calls at the same time share one flush. The caller must not hold a handle.
    ///
    /// # Errors
    /// An aborted journal, or the failure that aborts it.
    pub fn sync(&self) -> Result<()> {
        self.core.sync()
    }

    /// A ticket for all writes to the device that have returned: to be taken by who wrote, after
    /// the write, and handed to [`flush`](Self::flush) when the data has to be durable. No lock,
    /// and no store to shared memory. Of several writes the last ticket, the greatest, is enough.
    pub fn ticket(&self) -> Ticket {
        self.core.flush.ticket()
    }

    /// Whether a flush that began after `ticket` was taken is complete. One atomic load.
    pub fn is_flushed(&self, ticket: Ticket) -> bool {
        self.core.flush.is_done(ticket)
    }

    /// Returns when a flush of the device that began after `ticket` was taken is complete: at once
    /// if it has happened, as with every commit since; otherwise all who wait share the next one.
    /// Commits no metadata. Nothing to do on a read-only journal. The caller may not hold a handle,
    /// for the flush takes its time.
    ///
    /// # Errors
    /// The failure of the flush, which aborts the journal, to each whose ticket it was to cover; an
    /// aborted journal.
    pub fn flush(&self, ticket: Ticket) -> Result<()> {
        self.core.flush(ticket)
    }

    /// Commits, writes all that is committed home, and frees the log.
    ///
    /// # Errors
    /// An aborted journal, or the failure that aborts it.
    pub fn checkpoint(&self) -> Result<()> {
        self.core.sync()?;
        self.core.checkpoint()
    }

    /// Writes home what the oldest transactions in the log have changed, as many of them as take
    /// `blocks` blocks of the log, and frees their space. Commits nothing. The journal does this by
    /// itself, in the background, before handles have to wait.
    ///
    /// # Errors
    /// An aborted journal, or the failure that aborts it.
    pub fn checkpoint_oldest(&self, blocks: u32) -> Result<()> {
        self.core.checkpoint_oldest(blocks)
    }

    /// Calls `look` while the device holds one committed state: no commit and no checkpoint writes
    /// to it. Threads that want one wait until `look` has returned, and so do handles that find no
    /// room in the running transaction. Returns `None`, without a call, for a journal without a
    /// log. The caller may not hold a handle, and `look` may not start one, which could wait for
    /// the checkpoint that waits for `look`.
    ///
    /// # Errors
    /// An aborted or closed journal.
    pub fn hold<T>(&self, look: impl FnOnce() -> T) -> Result<Option<T>> {
        self.core.hold(look)
    }

    /// Commits and checkpoints everything and marks the log empty. Waits for open handles. What
    /// other threads change meanwhile is committed too, or their handle does not start; reading
    /// goes on.
    ///
    /// # Errors
    /// An aborted journal, or the failure that aborts it.
    pub fn close(&self) -> Result<()> {
        self.core.close()
    }

    /// Stops the journal for good: nothing more is committed, every later start, restart and commit
    /// fails with `reason`, and handles that are open go on in memory. The first reason stays. The
    /// log keeps a note of it (`s_errno`).
    pub fn abort(&self, reason: &str) {
        self.core.abort(&JournalError::Aborted(reason.into()));
    }

    /// Whether it was aborted or closed, so that nothing more becomes durable: one look at an
    /// atomic.
    pub fn has_ended(&self) -> bool {
        self.core.has_ended()
    }

    /// Why the journal was aborted, or that it is closed.
    pub fn error(&self) -> Option<JournalError> {
        self.core.error()
    }

    /// Returns whether a block was read or a handle started since the last call. The first use
    /// after it calls `on_use` of the [`Options`].
    pub fn take_used(&self) -> bool {
        self.core.take_used()
    }

    /// Whether something waits to be committed, or is being committed.
    pub fn has_uncommitted(&self) -> bool {
        self.core.has_uncommitted()
    }

    /// Drops every cached block that nobody uses: for a program that is idle, and wants its memory
    /// for others.
    pub fn release(&self) {
        self.core.release();
    }

    /// Bytes of metadata blocks in memory.
    pub fn memory(&self) -> u64 {
        self.core.blocks_in_memory() as u64 * u64::from(self.core.block_size)
    }

    /// Counters and times, at any moment.
    pub fn stats(&self) -> Stats {
        self.core.counters.read(self.core.flush.count(), self.core.levels())
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.core.background.stop();
        for thread in self.threads.drain(..) {
            // A panic in it was reported where it happened.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal").field("running", &self.running()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
