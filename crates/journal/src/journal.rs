//! The journal: first shape, a commit writes the blocks home. The log comes next.

use crate::{Buffer, Freed, Handle, JournalError, Options, Result, Stats, Tid};
use lanefs_device::BlockDevice;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Transactions over a cache of a volume's metadata blocks. Shared between threads.
pub struct Journal {
    device: Arc<dyn BlockDevice>,
    options: Options,
    cache: Mutex<HashMap<u64, Buffer>>,
    gate: RwLock<()>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    tid: u32,
    dirty: Vec<Buffer>,
    freed: Vec<Freed>,
    aborted: Option<Arc<str>>,
    stats: Stats,
}

impl Journal {
    /// Opens the journal of a volume whose log has been [recovered](crate::recovery).
    ///
    /// # Errors
    /// The device's failure; a journal superblock that cannot be used.
    pub fn open(device: Arc<dyn BlockDevice>, options: Options) -> Result<Self> {
        Ok(Self {
            device,
            options,
            cache: Mutex::default(),
            gate: RwLock::new(()),
            state: Mutex::new(State { tid: 1, ..State::default() }),
        })
    }

    fn offset(&self, block: u64) -> Result<u64> {
        let blocks = self.device.size() / u64::from(self.options.block_size.max(1));
        if block >= blocks {
            return Err(JournalError::BlockOutOfRange { block, blocks });
        }
        Ok(block * u64::from(self.options.block_size))
    }

    /// The block's content, from the cache or the device.
    ///
    /// # Errors
    /// The device's failure; a block outside of the volume.
    pub fn read(&self, block: u64) -> Result<Buffer> {
        let buffer = self.slot(block)?;
        if !buffer.0.ready.load(Ordering::Acquire) {
            let _one = buffer.0.loading.lock();
            if !buffer.0.ready.load(Ordering::Acquire) {
                self.device.read_at(self.offset(block)?, &mut buffer.write())?;
                self.state.lock().stats.blocks_read += 1;
                buffer.0.ready.store(true, Ordering::Release);
            }
        }
        Ok(buffer)
    }

    fn slot(&self, block: u64) -> Result<Buffer> {
        self.offset(block)?;
        let size = self.options.block_size as usize;
        Ok(self.cache.lock().entry(block).or_insert_with(|| Buffer::new(block, size)).clone())
    }

    pub(crate) fn blank(&self, block: u64) -> Result<Buffer> {
        let buffer = self.slot(block)?;
        buffer.0.ready.store(true, Ordering::Release);
        Ok(buffer)
    }

    /// Reads blocks ahead in batches. Best effort: errors show when the block is read.
    pub fn prefetch(&self, blocks: &[u64]) {
        for &block in blocks {
            let _ = self.read(block);
        }
    }

    /// Starts a handle that may touch `credits` blocks. Waits for space in the log.
    ///
    /// # Errors
    /// A read-only or aborted journal; more credits than a transaction has.
    pub fn start(&self, credits: u32) -> Result<Handle<'_>> {
        let (gate, tid) = self.enter(credits)?;
        Ok(Handle::new(self, gate, tid, credits))
    }

    pub(crate) fn enter(&self, credits: u32) -> Result<(RwLockReadGuard<'_, ()>, Tid)> {
        self.check()?;
        if self.options.read_only {
            return Err(JournalError::ReadOnly);
        }
        let gate = self.gate.read();
        let mut state = self.state.lock();
        state.stats.handles += 1;
        state.stats.credits_asked += u64::from(credits);
        Ok((gate, Tid(state.tid)))
    }

    pub(crate) fn leave(&self, joined: &mut Vec<Buffer>, freed: &mut Vec<Freed>) {
        let mut state = self.state.lock();
        state.dirty.append(joined);
        state.freed.append(freed);
    }

    /// The most credits that a handle can have.
    pub fn max_credits(&self) -> u32 {
        1 << 14
    }

    /// How many of the metadata blocks given back by [`Handle::free`] one credit pays for.
    pub fn revokes_per_credit(&self) -> u32 {
        (self.options.block_size - 20) / 8
    }

    /// The transaction that a handle started now would join.
    pub fn running(&self) -> Tid {
        Tid(self.state.lock().tid)
    }

    /// Returns when transaction `tid` is durable; at once if it is already.
    ///
    /// # Errors
    /// An aborted journal, or the failure that aborts it.
    pub fn commit(&self, tid: Tid) -> Result<()> {
        if Tid(self.state.lock().tid).after(tid) {
            return self.check();
        }
        self.sync()
    }

    /// Makes all that stopped handles did, and all data written before the call, durable. Calls at the
    /// same time share one flush.
    ///
    /// # Errors
    /// An aborted journal, or the failure that aborts it.
    pub fn sync(&self) -> Result<()> {
        self.check()?;
        let _all = self.gate.write();
        let (mut dirty, freed) = {
            let mut state = self.state.lock();
            if !state.dirty.is_empty() {
                state.tid = state.tid.wrapping_add(1);
                state.stats.commits += 1;
            }
            (std::mem::take(&mut state.dirty), std::mem::take(&mut state.freed))
        };
        dirty.sort_by_key(Buffer::block);
        let written = dirty.iter().try_for_each(|b| {
            let mine = b.0.owner.lock().take().is_some();
            if mine {
                self.device.write_at(self.offset(b.block())?, &b.read())?
            }
            Ok::<(), JournalError>(())
        });
        if let Err(e) = written.and_then(|()| Ok(self.device.flush()?)) {
            self.abort(&e.to_string());
            return Err(e);
        }
        if let (Some(on_freed), false) = (&self.options.on_freed, freed.is_empty()) {
            on_freed(&freed);
        }
        Ok(())
    }

    /// Writes all that is committed home, and frees the log.
    ///
    /// # Errors
    /// An aborted journal, or the failure that aborts it.
    pub fn checkpoint(&self) -> Result<()> {
        self.sync()
    }

    /// Commits and checkpoints everything and marks the log empty. No handle can start afterwards.
    ///
    /// # Errors
    /// An aborted journal, or the failure that aborts it.
    pub fn close(&self) -> Result<()> {
        self.sync()?;
        self.abort("closed");
        Ok(())
    }

    /// Stops the journal for good: nothing more is committed, every later start and commit fails with
    /// `reason`. The first reason stays.
    pub fn abort(&self, reason: &str) {
        self.state.lock().aborted.get_or_insert_with(|| reason.into());
    }

    /// Why the journal was aborted.
    pub fn error(&self) -> Option<JournalError> {
        self.state.lock().aborted.clone().map(JournalError::Aborted)
    }

    pub(crate) fn check(&self) -> Result<()> {
        self.error().map_or(Ok(()), Err)
    }

    /// Drops cached blocks that are no metadata any more, unless a transaction holds them.
    pub fn forget(&self, start: u64, len: u64) {
        let mut cache = self.cache.lock();
        for block in start..start.saturating_add(len) {
            if let Some(buffer) = cache.remove(&block) {
                *buffer.0.owner.lock() = None;
            }
        }
    }

    /// The counters.
    pub fn stats(&self) -> Stats {
        self.state.lock().stats
    }
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal").field("tid", &self.state.lock().tid).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
