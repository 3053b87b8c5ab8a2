//! The public interface of the journal.

use crate::alone::{self, Alone};
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
        if journal.core.has_threads() {
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

    /// Returns the block's content, from the cache or the device.
    ///
    /// # Errors
    /// The device's failure; a block outside of the volume.
    #[cfg_attr(lanefs_schedule, track_caller)]
    pub fn read(&self, block: u64) -> Result<Buffer> {
        self.core.read(block)
    }

    /// Returns the block's content as [`read`](Self::read) does. If it is not in the cache, all
    /// blocks that `among` returns are read in one batch: the block, and others that the caller
    /// will soon read.
    ///
    /// # Errors
    /// The device's failure to read the block; a block outside of the volume.
    pub fn read_among(&self, block: u64, among: impl FnOnce() -> Vec<u64>) -> Result<Buffer> {
        self.core.read_among(block, among)
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

    /// Returns the most credits that a handle can have.
    pub fn max_credits(&self) -> u32 {
        self.core.max_credits()
    }

    /// Returns how many metadata blocks freed by [`Handle::free`] one credit pays for.
    pub fn revokes_per_credit(&self) -> u32 {
        self.core.log.as_ref().map_or(u32::MAX, |log| log.revokes_per_block())
    }

    /// Returns the transaction that a handle started now would join.
    pub fn running(&self) -> Tid {
        self.core.gate.running().tid
    }

    /// Returns whether transaction `tid` is durable. One atomic load.
    pub fn is_durable(&self, tid: Tid) -> bool {
        self.core.is_durable(tid)
    }

    /// Waits until transaction `tid` is durable. Waits for its open handles, so the caller must not
    /// hold a handle.
    ///
    /// # Errors
    /// An aborted journal, or the failure that aborts it.
    pub fn commit(&self, tid: Tid) -> Result<()> {
        self.core.commit(tid).map(drop)
    }

    /// Returns whether a commit is under way, or about to begin.
    pub fn is_committing(&self) -> bool {
        self.core.commits.is_carried()
    }

    /// Makes the changes of all handles and all data written before the call durable. Waits for
    /// open handles, because another thread may have seen and relied on their changes. Concurrent
    /// calls share one flush. The caller must not hold a handle.
    ///
    /// # Errors
    /// An aborted journal, or the failure that aborts it.
    pub fn sync(&self) -> Result<()> {
        self.core.sync()
    }

    /// Returns a ticket for all writes to the device that have returned. The writing thread takes
    /// it after the write, and passes it to [`flush`](Self::flush) when the data has to be durable.
    /// Takes no lock, and stores nothing to shared memory. Of several tickets the last, the
    /// greatest, is enough.
    pub fn ticket(&self) -> Ticket {
        self.core.flush.ticket()
    }

    /// Waits until a flush of the device that began after `ticket` was taken is complete. Returns
    /// at once if there was one since, for example a commit's; otherwise all waiting threads share
    /// the next flush. Commits no metadata. Does nothing on a read-only journal. The caller must
    /// not hold a handle, which would delay commits for the duration of the flush.
    ///
    /// # Errors
    /// The failure of the flush, which aborts the journal, to every caller whose ticket it was to
    /// cover; an aborted journal.
    pub fn flush(&self, ticket: Ticket) -> Result<()> {
        self.core.flush(ticket)
    }

    /// Commits the running transaction, checkpoints all transactions, and frees the log.
    ///
    /// # Errors
    /// An aborted journal, or the failure that aborts it.
    pub fn checkpoint(&self) -> Result<()> {
        self.core.sync()?;
        self.core.checkpoint()
    }

    /// Checkpoints the oldest transactions in the log, as many as occupy `blocks` blocks, and frees
    /// their space. Commits nothing. A background thread does this by itself before handles have to
    /// wait.
    ///
    /// # Errors
    /// An aborted journal, or the failure that aborts it.
    pub fn checkpoint_oldest(&self, blocks: u32) -> Result<()> {
        self.core.checkpoint_oldest(blocks)
    }

    /// Calls `look` while the device holds one committed state: no commit and no checkpoint writes
    /// to it. Threads that request one wait until `look` has returned, and so do handles that find
    /// no room in the running transaction. Returns `None`, without a call, for a journal without a
    /// log. The caller may not hold a handle, and `look` may not start one, which could wait for
    /// the checkpoint that waits for `look`.
    ///
    /// # Errors
    /// An aborted or closed journal.
    pub fn hold<T>(&self, look: impl FnOnce() -> T) -> Result<Option<T>> {
        self.core.hold(look)
    }

    /// Runs `work` while no handle of another thread is open, none can start, and every committed
    /// block is in place: `work` may read a consistent volume block by block, and change it in
    /// transactions of its own ([`Alone`]). They are in place too before the next handle starts.
    /// Threads that start a handle or request a commit meanwhile wait.
    ///
    /// The caller may not hold a handle, nor anything that another thread needs to end its own.
    ///
    /// # Errors
    /// A read-only, closed or aborted journal; the failure that aborts it; that of `work`. Behind a
    /// commit of its own an error of `work` aborts the journal.
    pub fn alone<T, E: From<JournalError> + fmt::Display>(
        &self,
        work: impl FnOnce(&Alone<'_>) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        alone::run(self, work)
    }

    /// Learns that the device has become larger.
    pub fn measure_device(&self) {
        self.core.measure_device();
    }

    /// Commits and checkpoints everything and marks the log empty. Waits for open handles. A handle
    /// of another thread is either committed too or fails to start; reading goes on.
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

    /// Returns whether the journal was aborted or closed, so that nothing more becomes durable. One
    /// atomic load.
    pub fn has_ended(&self) -> bool {
        self.core.has_ended()
    }

    /// Returns why the journal was aborted, or that it is closed.
    pub fn error(&self) -> Option<JournalError> {
        self.core.error()
    }

    /// Returns whether a block was read or a handle started since the last call. The first use
    /// after it calls `on_use` of the [`Options`].
    pub fn take_used(&self) -> bool {
        self.core.take_used()
    }

    /// Returns whether a change waits for a commit or is being committed.
    pub fn has_uncommitted(&self) -> bool {
        self.core.has_uncommitted()
    }

    /// Drops every cached block without another reference. For an idle program that returns its
    /// memory to the system.
    pub fn release(&self) {
        self.core.release();
    }

    /// Returns how many bytes of metadata blocks are in memory.
    pub fn memory(&self) -> u64 {
        self.core.blocks_in_memory() as u64 * u64::from(self.core.block_size)
    }

    /// Returns counters and times, at any moment.
    pub fn stats(&self) -> Stats {
        self.core.counters.read(self.core.flush.count(), self.core.levels())
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.core.background.stop();
        for thread in self.threads.drain(..) {
            // A panic of the thread was reported where it happened.
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
