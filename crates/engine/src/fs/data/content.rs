//! The content of one file, for one operation: what every file of this folder adds methods to.
//!
//! Here are the parts that all operations share: which way bytes go ([`Via`]), the locks, and the
//! arithmetic between bytes, blocks and i_size.

use crate::error::{Error, Result};
use crate::fs::file::FileData;
use crate::fs::file::cache::FileCache;
use crate::fs::file::lock::LockedBytes;
use crate::fs::file::times::Stamp;
use crate::fs::inode::CachedInode;
use crate::fs::{Fs, Writer};
use crate::store::map::{self, Mapping, place};
use lanefs_rangelock::Range as Bytes;
use lanefs_sync::MutexGuard;
use lanefs_sync::order::{Level, Ordered};
use std::ops::Range;

/// A file and the state of its content.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Content<'n> {
    pub(super) node: &'n CachedInode,
    pub(super) file: &'n FileData,
}

/// How a handle uses the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caching {
    /// Reads and writes go through it.
    Cached,
    /// Large reads and writes bypass it, small ones go through it (RWF_DONTCACHE).
    Uncached,
    /// Everything bypasses it (O_DIRECT).
    Direct,
}

/// The way of bytes between a caller and the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Via {
    /// Through the page cache.
    Cache,
    /// Past it (O_DIRECT).
    Direct,
    /// Past it, on a device that is memory: a reader sees all of a write or none of it.
    Dax,
}

/// Bytes locked for a change, which a close of the volume waits for.
#[derive(Debug)]
pub(crate) struct Changing<'n> {
    _writer: Writer<'n>,
    _held: LockedBytes<'n>,
}

impl CachedInode {
    /// Returns the content of a regular file.
    pub(crate) fn content(&self) -> Content<'_> {
        Content { node: self, file: self.file() }
    }

    /// Returns the content, if it was ever used.
    pub(crate) fn content_if_used(&self) -> Option<Content<'_>> {
        Some(Content { node: self, file: self.file_if_used()? })
    }

    /// Writes out the dirty pages of a file, so that a later change does not become durable before
    /// them.
    pub(crate) fn write_out(&self) -> Result<()> {
        self.content_if_used().map_or(Ok(()), |content| content.write_back(super::ALL))
    }
}

impl<'n> Content<'n> {
    pub(super) fn fs(self) -> &'n Fs {
        &self.node.fs
    }

    fn via(self, caching: Caching) -> Via {
        let direct = caching == Caching::Direct;
        match (direct, self.fs().dax) {
            (false, false) => Via::Cache,
            // What it reads has to be verified. `share_unverified` decides, under the lock.
            _ if self.is_verity() => Via::Cache,
            (true, _) => Via::Direct,
            (false, true) => Via::Dax,
        }
    }

    /// Reads from byte `offset` on into `buf`. Returns how many bytes there were before i_size.
    ///
    /// # Errors
    /// The device's; a damaged map.
    pub(crate) fn read(self, buf: &mut [u8], offset: u64, caching: Caching) -> Result<usize> {
        match self.via(caching) {
            Via::Cache if caching == Caching::Uncached => self.read_for_cache(buf, offset),
            Via::Cache => self.read_cached(buf, offset),
            Via::Direct | Via::Dax => self.read_direct(buf, offset),
        }
    }

    /// Reads as [`read`](Self::read) does, but returns what there is without waiting: cached bytes,
    /// or bytes that no writer has locked. Returns 0 only at the end.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] with nothing read; the device's; a damaged map.
    pub(crate) fn try_read(self, buf: &mut [u8], offset: u64, caching: Caching) -> Result<usize> {
        match self.via(caching) {
            Via::Cache => self.try_read_cached(buf, offset),
            Via::Direct | Via::Dax => self.try_read_direct(buf, offset),
        }
    }

    /// Reads as [`read`](Self::read) does, for a caller with its own cache: many blocks come
    /// straight from the device, unless this cache has newer ones.
    ///
    /// # Errors
    /// The device's; a damaged map.
    pub(crate) fn read_for_cache(self, buf: &mut [u8], offset: u64) -> Result<usize> {
        match self.via(Caching::Cached) {
            Via::Cache if self.goes_past(offset, buf.len()) => self.read_past(buf, offset),
            _ => self.read(buf, offset, Caching::Cached),
        }
    }

    /// Writes all of `bytes` at `offset`. Bytes between the old end and `offset` read as zeros.
    /// Adds to `done` how many bytes are written, also of a write that an error ended.
    ///
    /// # Errors
    /// [`Error::FileTooBig`], [`Error::NotPermitted`]: nothing is written. [`Error::NoSpace`], or
    /// the device's: a part may be.
    pub(crate) fn write(self, bytes: &[u8], offset: u64, caching: Caching, done: &mut usize) -> Result<()> {
        match self.via(caching) {
            Via::Cache if self.bypasses(caching, bytes, offset) => {
                self.write_whole(bytes, offset, Stamp::Now, done)
            }
            Via::Cache => self.write_cached(bytes, offset, Stamp::Now, done),
            Via::Direct => self.write_direct(bytes, offset, done),
            Via::Dax => self.write_whole(bytes, offset, Stamp::Now, done),
        }
    }

    /// Writes bytes that a caller with its own cache accepted when the write was allowed: flags
    /// that the inode got since do not refuse it, and no time changes, because that caller keeps
    /// the times too. Many whole blocks go straight to the device.
    ///
    /// # Errors
    /// The errors of [`write_past`](Self::write_past).
    pub(crate) fn write_late(self, bytes: &[u8], offset: u64) -> Result<()> {
        if self.via(Caching::Cached) == Via::Dax {
            return self.write_whole(bytes, offset, Stamp::Kept, &mut 0);
        }
        let block = self.fs().block_size as usize;
        let (whole, rest) = bytes.split_at(bytes.len() / block * block);
        if !self.goes_past(offset, whole.len()) {
            return self.write_cached(bytes, offset, Stamp::Kept, &mut 0);
        }
        self.write_past(whole, offset)?;
        self.write_cached(rest, offset + whole.len() as u64, Stamp::Kept, &mut 0)
    }

    /// Writes all of `bytes` at the end. Sets `at` to where that is before it writes, and adds to
    /// `done` as [`write`](Self::write) does.
    ///
    /// # Errors
    /// The errors of [`write`](Self::write).
    pub(crate) fn append(self, bytes: &[u8], caching: Caching, at: &mut u64, done: &mut usize) -> Result<()> {
        match self.via(caching) {
            Via::Cache if !self.bypasses(caching, bytes, self.file.size()) => {
                self.append_cached(bytes, at, done)
            }
            Via::Cache | Via::Direct | Via::Dax => self.append_direct(bytes, at, done),
        }
    }

    /// Writes `bytes` without waiting, from the first on, until a block would have to be loaded or
    /// allocated. Returns how many. Without an `offset`, writes at the end.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] with nothing written; those of [`write`](Self::write).
    pub(crate) fn try_write(self, bytes: &[u8], offset: Option<u64>, caching: Caching) -> Result<usize> {
        match (self.via(caching), offset) {
            (Via::Direct, None) => Err(Error::WouldBlock),
            (Via::Direct, Some(offset)) => self.try_write_direct(bytes, offset),
            (via, _) => self.try_write_whole(bytes, offset, via),
        }
    }

    /// Returns whether a write bypasses the page cache: a large write of whole blocks, if the
    /// handle asks for that.
    fn bypasses(self, caching: Caching, bytes: &[u8], offset: u64) -> bool {
        let len = bytes.len();
        let whole = len.is_multiple_of(self.fs().block_size as usize);
        caching == Caching::Uncached && whole && self.goes_past(offset, len)
    }

    /// Returns how many of `len` bytes from `offset` on lie before i_size, and before the end of
    /// what a map can hold: the i_size of a damaged inode may lie behind that.
    pub(super) fn before_end(self, offset: u64, len: usize) -> usize {
        let end = self.file.size().min(map::max_size(self.fs(), self.node.flags()));
        let left = end.saturating_sub(offset);
        len.min(usize::try_from(left).unwrap_or(usize::MAX))
    }

    /// Returns the blocks that hold `offset..end`: one where that is empty.
    pub(super) fn blocks(self, offset: u64, end: u64) -> Result<Range<u32>> {
        let (first, _) = place(self.fs(), offset)?;
        let (last, _) = place(self.fs(), end.max(offset + 1) - 1)?;
        Ok(first..last + 1)
    }

    /// Returns how many blocks hold the bytes before `end`: no more than a map can have.
    pub(super) fn blocks_to(self, end: u64) -> u32 {
        u32::try_from(end.div_ceil(self.fs().block_size.into())).unwrap_or(u32::MAX)
    }

    /// Returns whether the cache may hold newer bytes of `blocks` than the device.
    pub(super) fn is_busy(self, blocks: Range<u32>) -> bool {
        self.file.pages_if_used().is_some_and(|pages| pages.is_busy(blocks))
    }

    /// Returns the mapping of `lblk`, from the snapshot or else from the map.
    pub(super) fn mapping(self, lblk: u32) -> Result<Mapping> {
        if let Some((block, len)) = self.file.snapshot.find(lblk) {
            return Ok(Mapping::Mapped { block, len, unwritten: false });
        }
        self.miss();
        self.map(lblk)
    }

    /// Returns the mapping of `lblk` in the map.
    pub(super) fn map(self, lblk: u32) -> Result<Mapping> {
        map::lookup(self.fs(), &self.node.state(), lblk)
    }

    /// Returns the cached pages.
    pub(super) fn pages(self) -> &'n FileCache {
        self.file.pages(&self.fs().pages, self.node.ino)
    }

    /// Locks bytes `offset..end`, which are not empty, shared.
    pub(super) fn share(self, offset: u64, end: u64) -> LockedBytes<'n> {
        self.file.lock.read(self.node.ino, between(offset, end), &self.fs().counters.range_wait)
    }

    /// Locks as [`share`](Self::share) does; `None` if it would have to wait.
    pub(super) fn try_share(self, offset: u64, end: u64) -> Option<LockedBytes<'n>> {
        self.file.lock.try_read(self.node.ino, between(offset, end))
    }

    /// Locks as [`share`](Self::share) does, for a read past the page cache; `None` if a hash tree
    /// vouches for the content, which only the cache verifies. The file may get its tree while this
    /// thread waits for the lock.
    pub(super) fn share_unverified(self, offset: u64, end: u64) -> Option<LockedBytes<'n>> {
        Some(self.share(offset, end)).filter(|_| !self.is_verity())
    }

    /// Locks as [`share_unverified`](Self::share_unverified) does; `None` also if it would have to
    /// wait.
    pub(super) fn try_share_unverified(self, offset: u64, end: u64) -> Option<LockedBytes<'n>> {
        self.try_share(offset, end).filter(|_| !self.is_verity())
    }

    /// Begins a change under the lock of its bytes.
    ///
    /// # Errors
    /// [`Error::Closed`]; [`Error::TextBusy`] while the file gets its hash tree.
    fn change(self, held: LockedBytes<'n>) -> Result<Changing<'n>> {
        self.file.check_writers()?;
        Ok(Changing { _writer: self.fs().enter()?, _held: held })
    }

    /// Locks bytes `offset..end`, which are not empty, for an overwrite in place, shared.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub(super) fn share_to_write(self, offset: u64, end: u64) -> Result<Changing<'n>> {
        self.change(self.share(offset, end))
    }

    /// Locks as [`share_to_write`](Self::share_to_write) does, but without waiting.
    ///
    /// # Errors
    /// [`Error::Closed`]; [`Error::WouldBlock`] if it would have to wait.
    pub(super) fn try_share_to_write(self, offset: u64, end: u64) -> Result<Changing<'n>> {
        self.change(self.try_share(offset, end).ok_or(Error::WouldBlock)?)
    }

    /// Locks `range` exclusively, for a change.
    ///
    /// # Errors
    /// [`Error::TextBusy`] while the file gets its hash tree: this thread would wait for the tree,
    /// and readers for this thread.
    fn lock_to_change(self, range: Bytes) -> Result<LockedBytes<'n>> {
        self.file.check_writers()?;
        Ok(self.file.lock.write(self.node.ino, range, &self.fs().counters.range_wait))
    }

    /// Locks the blocks of bytes `offset..end` for a write, exclusively. If `end` is beyond i_size,
    /// locks all bytes from i_size (or from `offset`, if that is less) on.
    ///
    /// # Errors
    /// [`Error::Closed`]; [`Error::TextBusy`] while the file gets its hash tree.
    pub(super) fn lock_to_write(self, offset: u64, end: u64) -> Result<Changing<'n>> {
        loop {
            let range = self.range_to_write(offset, end);
            let held = self.lock_to_change(range)?;
            if self.is_enough(range, offset, end) {
                return self.change(held);
            }
            self.fs().counters.range_retries.add(1);
        }
    }

    /// Locks as [`lock_to_write`](Self::lock_to_write) does.
    ///
    /// # Errors
    /// [`Error::Closed`]; [`Error::WouldBlock`] if it would have to wait.
    pub(super) fn try_lock_to_write(self, offset: u64, end: u64) -> Result<Changing<'n>> {
        let range = self.range_to_write(offset, end);
        let held = self.file.lock.try_write(self.node.ino, range);
        let held = held.filter(|_| self.is_enough(range, offset, end)).ok_or(Error::WouldBlock)?;
        self.change(held)
    }

    fn range_to_write(self, offset: u64, end: u64) -> Bytes {
        let block = u64::from(self.fs().block_size);
        let size = self.file.size();
        if end > size {
            return Bytes::starting_at(offset.min(size) / block * block);
        }
        between(offset / block * block, end.checked_next_multiple_of(block).unwrap_or(end))
    }

    /// Returns whether `held` is enough for i_size as it is now: it may have moved before the lock
    /// was held.
    fn is_enough(self, held: Bytes, offset: u64, end: u64) -> bool {
        let size = self.file.size();
        end <= size || held.last() == u64::MAX && held.first() <= offset.min(size)
    }

    /// Locks the bytes from the end of the file on, exclusively. Returns the end too.
    ///
    /// # Errors
    /// [`Error::Closed`]; [`Error::TextBusy`] while the file gets its hash tree.
    pub(super) fn lock_end(self) -> Result<(Changing<'n>, u64)> {
        loop {
            let size = self.file.size();
            let first = size / u64::from(self.fs().block_size) * u64::from(self.fs().block_size);
            let held = self.lock_to_change(Bytes::starting_at(first))?;
            // If the file has grown, the new end is locked too. If it was cut, try again.
            let now = self.file.size();
            if now >= first {
                return Ok((self.change(held)?, now));
            }
            self.fs().counters.range_retries.add(1);
        }
    }

    /// Locks the bytes from `from` or from the end of the file on, exclusively, for a caller that
    /// moves blocks or i_size.
    ///
    /// # Errors
    /// [`Error::Closed`]; [`Error::TextBusy`] while the file gets its hash tree.
    pub(crate) fn lock_from(self, from: u64) -> Result<Changing<'n>> {
        let block = u64::from(self.fs().block_size);
        loop {
            let first = from.min(self.file.size()) / block * block;
            let held = self.lock_to_change(Bytes::starting_at(first))?;
            if self.file.size() >= first {
                return self.change(held);
            }
            self.fs().counters.range_retries.add(1);
        }
    }

    /// Waits until no thread writes pages of the file out, and keeps other threads from doing so.
    pub(crate) fn hold_writeback(self) -> Ordered<MutexGuard<'n, ()>> {
        Ordered::take(Level::Writeback, self.node.ino.into(), || self.file.writeback.lock())
    }

    /// Notes a change of the content that readers can see already.
    pub(super) fn touch(self, stamp: Stamp) {
        match self.file.times.touch(&self.fs().clock, self.fs().options.modes.i_version, stamp) {
            Some(now) => self.fs().note_dirty_times(self.node.ino, || self.file.times.raise(now)),
            // The times do not change, but there may be dirty pages to write out.
            None if stamp == Stamp::Kept => self.fs().flusher.stir(),
            None => {}
        }
    }
}

/// Returns `offset..end` as a range; one byte where it would be empty.
fn between(offset: u64, end: u64) -> Bytes {
    Bytes::inclusive(offset, end.saturating_sub(1).max(offset)).unwrap_or(Bytes::ALL)
}

/// Returns the end of `bytes` at `offset`.
///
/// # Errors
/// [`Error::FileTooBig`].
pub(super) fn end_of(bytes: &[u8], offset: u64) -> Result<u64> {
    offset.checked_add(bytes.len() as u64).ok_or(Error::FileTooBig)
}
