//! The state of a regular file's content in memory, from its first use on.
//!
//! `size` is i_size as programs see it. The size in the inode is i_disksize: it moves only when the
//! data before it is on the device, and never exceeds `size`. `disk_size` is a copy of i_disksize
//! that is read without the inode's lock.

use super::cache::{FileCache, ReadAhead};
use super::delayed::Delayed;
use super::lock::{DataLock, Held};
use super::snapshot::Snapshot;
use super::times::{Stamp, Times};
use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::fs::inode::Node;
use crate::store::alloc::FileAlloc;
use lanefs_format::Inode;
use lanefs_journal::Ticket;
use lanefs_rangelock::Range as Bytes;
use lanefs_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use lanefs_sync::order::{Level, Ordered};
use lanefs_sync::{Mutex, MutexGuard, OnceLock};
use std::ops::Range;
use std::sync::Arc;

/// The state of one file's content.
#[derive(Debug)]
pub(crate) struct FileData {
    size: AtomicU64,
    disk_size: AtomicU64,
    lock: DataLock,
    /// The map as last seen.
    pub(crate) snapshot: Snapshot,
    /// Times and i_version that the inode does not have yet.
    pub(crate) times: Times,
    /// Held by a thread that writes pages out, and by a thread that moves blocks.
    writeback: Mutex<()>,
    /// The ticket of the flush that makes durable what was written past the journal.
    unflushed: AtomicU64,
    pages: OnceLock<Arc<FileCache>>,
    delayed: Mutex<Delayed>,
    /// Writeback failures outside of a call on the file, for a sync to report.
    failures: AtomicU32,
    /// Written blocks lie behind i_size: a truncation failed before it had freed them.
    cut_short: AtomicBool,
    ahead: Mutex<ReadAhead>,
    /// Blocks that are preallocated.
    pub(crate) alloc: FileAlloc,
}

impl FileData {
    pub(crate) fn new(fs: &Fs, inode: &Inode) -> Self {
        Self {
            size: AtomicU64::new(inode.size),
            disk_size: AtomicU64::new(inode.size),
            lock: DataLock::new(fs.options.modes.locking),
            snapshot: Snapshot::default(),
            times: Times::new(inode),
            writeback: Mutex::new(()),
            unflushed: AtomicU64::new(fs.unflushed().to_u64()),
            pages: OnceLock::new(),
            delayed: Mutex::default(),
            failures: AtomicU32::new(0),
            cut_short: AtomicBool::new(false),
            ahead: Mutex::new(ReadAhead::new(fs.options.cache())),
            alloc: FileAlloc::new(),
        }
    }

    /// i_size.
    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Sets i_size. The caller has locked the bytes from the old or the new end on, whichever is
    /// less.
    pub(super) fn set_size(&self, size: u64) {
        self.size.store(size, Ordering::Release);
    }

    /// Returns i_disksize: all bytes before it are on the device, or were once.
    pub(super) fn disk_size(&self) -> u64 {
        self.disk_size.load(Ordering::Acquire)
    }

    /// Notes a new i_disksize. The caller holds the inode's lock.
    pub(crate) fn set_disk_size(&self, size: u64) {
        self.disk_size.store(size, Ordering::Release);
    }

    /// Moves i_size up to `end`.
    pub(super) fn extend(&self, end: u64) {
        if self.size() < end {
            self.size.fetch_max(end, Ordering::AcqRel);
        }
    }

    /// Locks bytes `offset..end`, which are not empty, shared.
    pub(super) fn share(&self, node: &Node, offset: u64, end: u64) -> Held<'_> {
        self.lock.read(node.ino, between(offset, end), &node.fs.counters.range_wait)
    }

    /// Prepares the lock for direct overwrites, so that threads that share it do not contend.
    pub(super) fn expect_overwrites(&self) {
        self.lock.expect_readers();
    }

    /// Locks as [`share`](Self::share) does; `None` if it would have to wait.
    pub(super) fn try_share(&self, node: &Node, offset: u64, end: u64) -> Option<Held<'_>> {
        self.lock.try_read(node.ino, between(offset, end))
    }

    /// Locks the blocks of bytes `offset..end` for a write, exclusively. If `end` is beyond i_size,
    /// locks all bytes from i_size (or from `offset`, if that is less) on.
    pub(super) fn lock_to_write(&self, node: &Node, offset: u64, end: u64) -> Held<'_> {
        loop {
            let range = self.range_to_write(node, offset, end);
            let held = self.lock.write(node.ino, range, &node.fs.counters.range_wait);
            if self.is_enough(range, offset, end) {
                return held;
            }
            node.fs.counters.range_retries.add(1);
        }
    }

    /// Locks as [`lock_to_write`](Self::lock_to_write) does; `None` if it would have to wait.
    pub(super) fn try_lock_to_write(&self, node: &Node, offset: u64, end: u64) -> Option<Held<'_>> {
        let range = self.range_to_write(node, offset, end);
        let held = self.lock.try_write(node.ino, range)?;
        self.is_enough(range, offset, end).then_some(held)
    }

    fn range_to_write(&self, node: &Node, offset: u64, end: u64) -> Bytes {
        let block = u64::from(node.fs.block_size);
        let size = self.size();
        if end > size {
            return Bytes::starting_at(offset.min(size) / block * block);
        }
        between(offset / block * block, end.checked_next_multiple_of(block).unwrap_or(end))
    }

    /// Whether `held` is enough for i_size as it is now: it may have moved before the lock was
    /// held.
    fn is_enough(&self, held: Bytes, offset: u64, end: u64) -> bool {
        let size = self.size();
        end <= size || held.last() == u64::MAX && held.first() <= offset.min(size)
    }

    /// Locks the bytes from the end of the file on, exclusively. Returns the end too.
    pub(super) fn lock_end(&self, node: &Node) -> (Held<'_>, u64) {
        loop {
            let size = self.size();
            let first = size / u64::from(node.fs.block_size) * u64::from(node.fs.block_size);
            let held = self.lock.write(node.ino, Bytes::starting_at(first), &node.fs.counters.range_wait);
            // If the file has grown, the new end is locked too. If it was cut, try again.
            let now = self.size();
            if now >= first {
                return (held, now);
            }
            node.fs.counters.range_retries.add(1);
        }
    }

    /// Locks the bytes from `from` or from the end of the file on, exclusively, for a caller that
    /// moves blocks or i_size.
    pub(crate) fn lock_from(&self, node: &Node, from: u64) -> Held<'_> {
        let block = u64::from(node.fs.block_size);
        loop {
            let first = from.min(self.size()) / block * block;
            let held = self.lock.write(node.ino, Bytes::starting_at(first), &node.fs.counters.range_wait);
            if self.size() >= first {
                return held;
            }
            node.fs.counters.range_retries.add(1);
        }
    }

    /// Waits until no thread writes pages of the file out, and keeps other threads from doing so.
    pub(crate) fn hold_writeback(&self, node: &Node) -> Ordered<MutexGuard<'_, ()>> {
        Ordered::take(Level::Writeback, node.ino.into(), || self.writeback.lock())
    }

    /// Whether it has changes that the inode on disk does not have.
    pub(crate) fn is_ahead(&self) -> bool {
        self.is_cut_short()
            || self.times.is_pending()
            || self.pages_if_used().is_some_and(|pages| pages.is_dirty())
    }

    /// Whether a truncation has left written blocks behind i_size.
    pub(super) fn is_cut_short(&self) -> bool {
        self.cut_short.load(Ordering::Acquire)
    }

    /// Notes whether it has. The caller has locked the bytes from i_size on.
    pub(super) fn set_cut_short(&self, cut_short: bool) {
        self.cut_short.store(cut_short, Ordering::Release);
    }

    /// Checks that the file may grow. The bytes behind i_size would then read as zeros.
    ///
    /// # Errors
    /// [`Error::CutShort`].
    pub(super) fn check_growth(&self, ino: u32) -> Result<()> {
        if self.is_cut_short() { Err(Error::CutShort { ino }) } else { Ok(()) }
    }

    /// Whether there may be cached pages.
    pub(crate) fn has_pages(&self) -> bool {
        self.pages_if_used().is_some()
    }

    /// The cached pages.
    pub(super) fn pages(&self, node: &Node) -> &FileCache {
        self.pages.get_or_init(|| FileCache::new(&node.fs.pages, node.ino))
    }

    /// The cached pages, if there ever were any.
    pub(super) fn pages_if_used(&self) -> Option<&FileCache> {
        self.pages.get().map(|pages| &**pages)
    }

    /// Drops cached pages that are not dirty.
    pub(super) fn drop_pages(&self, blocks: Range<u32>) {
        if let Some(pages) = self.pages_if_used() {
            pages.drop_clean(blocks);
        }
    }

    /// Blocks that the file will have for dirty pages that are not allocated yet.
    pub(crate) fn delayed_blocks(&self) -> u64 {
        self.delayed.lock().data_blocks()
    }

    /// The space that is claimed for dirty pages.
    pub(super) fn delayed(&self) -> MutexGuard<'_, Delayed> {
        self.delayed.lock()
    }

    /// Notes a read of `bytes`. Returns the bytes to read ahead: none while another thread asks.
    pub(super) fn read_ahead(&self, bytes: Range<u64>) -> Range<u64> {
        self.ahead.try_lock().map_or(0..0, |mut ahead| ahead.read(bytes, self.size()))
    }

    /// Failures to write data out so far.
    pub(crate) fn failures(&self) -> u32 {
        self.failures.load(Ordering::Acquire)
    }

    pub(super) fn note_failure(&self) {
        self.failures.fetch_add(1, Ordering::AcqRel);
    }

    /// Notes a change of the content that readers can see already.
    pub(super) fn touch(&self, node: &Node, stamp: Stamp) {
        match self.times.touch(&node.fs.clock, node.fs.options.modes.i_version, stamp) {
            Some(now) => node.fs.note_dirty_times(node.ino, || self.times.raise(now)),
            // The times do not change, but there may be dirty pages to write out.
            None if stamp == Stamp::Kept => node.fs.flusher.stir(),
            None => {}
        }
    }

    /// Notes that data was written past the journal, after the write has returned.
    pub(super) fn wrote(&self, fs: &Fs) {
        // A flush does nothing on this device: a write is as durable as it will be.
        if fs.writes_last {
            return;
        }
        let ticket = fs.journal.ticket().to_u64();
        if self.unflushed.load(Ordering::Relaxed) < ticket {
            self.unflushed.fetch_max(ticket, Ordering::AcqRel);
        }
    }

    /// The ticket of the flush that makes all data durable that was written so far.
    pub(crate) fn unflushed(&self) -> Ticket {
        Ticket::from_u64(self.unflushed.load(Ordering::Acquire))
    }
}

/// `offset..end` as a range; one byte where it would be empty.
fn between(offset: u64, end: u64) -> Bytes {
    Bytes::inclusive(offset, end.saturating_sub(1).max(offset)).unwrap_or(Bytes::ALL)
}
