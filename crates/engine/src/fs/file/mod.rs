//! The state of a regular file's content in memory, from its first use on.
//!
//! `size` is i_size as programs see it. The size in the inode is i_disksize: it moves only when the
//! data before it is on the device, and never exceeds `size`. `disk_size` is a copy of i_disksize
//! that is read without the inode's lock.

pub(crate) mod cache;
pub(crate) mod delayed;
pub(crate) mod lock;
pub(crate) mod snapshot;
pub(crate) mod times;
pub(crate) mod verity;

use cache::{FileCache, PageCache, ReadAhead};
use delayed::Delayed;
use lock::DataLock;
use snapshot::Snapshot;
use times::Times;
use verity::Verity;

use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::store::alloc::FileAlloc;
use lanefs_format::Inode;
use lanefs_journal::Ticket;
use lanefs_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use lanefs_sync::{Mutex, MutexGuard, OnceLock};
use std::ops::Range;
use std::sync::Arc;

/// The number of writers of a file that none may open for writing.
const NO_WRITERS: u32 = u32::MAX;

/// The state of one file's content.
#[derive(Debug)]
pub(crate) struct FileData {
    size: AtomicU64,
    disk_size: AtomicU64,
    pub(crate) lock: DataLock,
    /// The map as last seen.
    pub(crate) snapshot: Snapshot,
    /// Times and i_version that the inode does not have yet.
    pub(crate) times: Times,
    /// Held by a thread that writes pages out, and by a thread that moves blocks.
    pub(crate) writeback: Mutex<()>,
    /// The ticket of the flush that makes durable what was written past the journal.
    unflushed: AtomicU64,
    pages: OnceLock<Arc<FileCache>>,
    delayed: Mutex<Delayed>,
    /// Writeback failures outside of a call on the file, for a sync to report.
    failures: AtomicU32,
    /// Written blocks lie behind i_size: a truncation failed before it had freed them, or the file
    /// gets a hash tree.
    cut_short: AtomicBool,
    ahead: Mutex<ReadAhead>,
    /// The hash tree, from the first read on that needed it.
    pub(crate) verity: OnceLock<Verity>,
    /// Handles that are open for writing, or [`NO_WRITERS`].
    writers: AtomicU32,
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
            verity: OnceLock::new(),
            writers: AtomicU32::new(0),
            alloc: FileAlloc::new(),
        }
    }

    /// Counts a handle that is open for writing.
    ///
    /// # Errors
    /// [`Error::TextBusy`] while the file gets a hash tree.
    pub(crate) fn add_writer(&self) -> Result<()> {
        let more = |writers: u32| writers.checked_add(1);
        match self.writers.fetch_update(Ordering::AcqRel, Ordering::Acquire, more) {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::TextBusy),
        }
    }

    /// Uncounts a handle.
    pub(crate) fn remove_writer(&self) {
        self.writers.fetch_sub(1, Ordering::AcqRel);
    }

    /// Refuses to open the file for writing, if it has no writers but the `own` ones of the caller.
    ///
    /// # Errors
    /// [`Error::TextBusy`] if it has.
    pub(crate) fn deny_writers(&self, own: u32) -> Result<()> {
        let denied = self.writers.compare_exchange(own, NO_WRITERS, Ordering::AcqRel, Ordering::Acquire);
        denied.map(drop).map_err(|_| Error::TextBusy)
    }

    /// Lets the file be opened for writing again, as before [`deny_writers`](Self::deny_writers).
    pub(crate) fn allow_writers(&self, own: u32) {
        self.writers.store(own, Ordering::Release);
    }

    /// Checks that the content may be changed: not while the file gets a hash tree.
    ///
    /// # Errors
    /// [`Error::TextBusy`].
    pub(crate) fn check_writers(&self) -> Result<()> {
        match self.writers.load(Ordering::Acquire) {
            NO_WRITERS => Err(Error::TextBusy),
            _ => Ok(()),
        }
    }

    /// Returns i_size.
    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Sets i_size. The caller has locked the bytes from the old or the new end on, whichever is
    /// less.
    pub(crate) fn set_size(&self, size: u64) {
        self.size.store(size, Ordering::Release);
    }

    /// Returns i_disksize: all bytes before it are on the device, or were once.
    pub(crate) fn disk_size(&self) -> u64 {
        self.disk_size.load(Ordering::Acquire)
    }

    /// Notes a new i_disksize. The caller holds the inode's lock.
    pub(crate) fn set_disk_size(&self, size: u64) {
        self.disk_size.store(size, Ordering::Release);
    }

    /// Moves i_size up to `end`.
    pub(crate) fn extend(&self, end: u64) {
        if self.size() < end {
            self.size.fetch_max(end, Ordering::AcqRel);
        }
    }

    /// Prepares the lock for direct overwrites, so that threads that share it do not contend.
    pub(crate) fn expect_overwrites(&self) {
        self.lock.expect_readers();
    }

    /// Returns whether it has changes that the inode on disk does not have.
    pub(crate) fn is_ahead(&self) -> bool {
        self.is_cut_short()
            || self.times.is_pending()
            || self.pages_if_used().is_some_and(|pages| pages.is_dirty())
    }

    /// Returns whether written blocks lie behind i_size, so that the inode stays an orphan.
    pub(crate) fn is_cut_short(&self) -> bool {
        self.cut_short.load(Ordering::Acquire)
    }

    /// Notes whether it has. The caller has locked the bytes from i_size on.
    pub(crate) fn set_cut_short(&self, cut_short: bool) {
        self.cut_short.store(cut_short, Ordering::Release);
    }

    /// Checks that the file may grow. The bytes behind i_size would then read as zeros.
    ///
    /// # Errors
    /// [`Error::CutShort`].
    pub(crate) fn check_growth(&self, ino: u32) -> Result<()> {
        if self.is_cut_short() { Err(Error::CutShort { ino }) } else { Ok(()) }
    }

    /// Returns whether there may be cached pages.
    pub(crate) fn has_pages(&self) -> bool {
        self.pages_if_used().is_some()
    }

    /// Returns the cached pages.
    pub(crate) fn pages(&self, cache: &Arc<PageCache>, ino: u32) -> &FileCache {
        self.pages.get_or_init(|| FileCache::new(cache, ino))
    }

    /// Returns the cached pages, if there ever were any.
    pub(crate) fn pages_if_used(&self) -> Option<&FileCache> {
        self.pages.get().map(|pages| &**pages)
    }

    /// Drops cached pages that are not dirty.
    pub(crate) fn drop_pages(&self, blocks: Range<u32>) {
        if let Some(pages) = self.pages_if_used() {
            pages.drop_clean(blocks);
        }
    }

    /// Returns the blocks that the file will have for dirty pages that are not allocated yet.
    pub(crate) fn delayed_blocks(&self) -> u64 {
        self.delayed.lock().data_blocks()
    }

    /// Returns the space that is claimed for dirty pages.
    pub(crate) fn delayed(&self) -> MutexGuard<'_, Delayed> {
        self.delayed.lock()
    }

    /// Notes a read of `bytes`. Returns the bytes to read ahead: none while another thread asks.
    pub(crate) fn read_ahead(&self, bytes: Range<u64>) -> Range<u64> {
        self.ahead.try_lock().map_or(0..0, |mut ahead| ahead.read(bytes, self.size()))
    }

    /// Failures to write data out so far.
    pub(crate) fn failures(&self) -> u32 {
        self.failures.load(Ordering::Acquire)
    }

    pub(crate) fn note_failure(&self) {
        self.failures.fetch_add(1, Ordering::AcqRel);
    }

    /// Notes that data was written past the journal, after the write has returned.
    pub(crate) fn wrote(&self, fs: &Fs) {
        // A flush does nothing on this device: a write is as durable as it will be.
        if fs.writes_last {
            return;
        }
        let ticket = fs.journal.ticket().to_u64();
        if self.unflushed.load(Ordering::Relaxed) < ticket {
            self.unflushed.fetch_max(ticket, Ordering::AcqRel);
        }
    }

    /// Returns the ticket of the flush that makes all data durable that was written so far.
    pub(crate) fn unflushed(&self) -> Ticket {
        Ticket::from_u64(self.unflushed.load(Ordering::Acquire))
    }
}
