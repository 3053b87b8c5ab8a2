//! Reading and writing through the page cache.
//!
//! A write copies into pages, and claims space for blocks that are not allocated yet. A read copies
//! out of pages, and loads missing ones: with readahead, if it goes on where the last read ended.
//! Callers with their own cache (the kernel, above a mount) transfer many blocks at once. These go
//! past this cache ([`Content::write_late`], [`Content::read_for_cache`]): a second copy would not
//! be read again.
//!
//! Invariant: a write locks its bytes exclusively and a read locks them shared, so a read sees all
//! of a write or none of it. Writers of disjoint blocks do not wait for each other.

use super::content::{Content, end_of};
use super::io::{self, ReadPath};
use super::verity::Expected;
use crate::error::{Error, Result};
use crate::fs::file::cache::{FileCache, Segment};
use crate::fs::file::times::Stamp;
use std::ops::Range;

/// Bytes whose pages are locked at a time.
pub(super) const SPAN: u64 = 256 << 10;

impl Content<'_> {
    /// Reads from byte `offset` on into `buf`. Returns how many bytes there were before i_size.
    pub(super) fn read_cached(self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let _timer = self.fs().counters.read.start();
        let end = offset.saturating_add(buf.len() as u64);
        let _held = self.share(offset, end);
        let len = self.before_end(offset, buf.len());
        let buf = &mut buf[..len];
        let pages = self.pages();
        let more = self.file.read_ahead(offset..offset + len as u64);
        let mut done = 0;
        while done < len {
            done += pages.read(offset + done as u64, &mut buf[done..]);
            if done == len {
                break;
            }
            let at = offset + done as u64;
            let missing = self.blocks(at, (offset + len as u64).min(at.saturating_add(SPAN)))?;
            let expected = self.expected(&missing)?;
            let mut span = pages.span(missing.clone());
            span.fill(missing, |segments| self.fill(segments, expected.as_ref()))?;
            // Copies while the span is locked: once it is unlocked, another thread's pages may
            // evict these.
            done += span.copy_out(&mut buf[done..], at);
        }
        if !more.is_empty() {
            // The reader that asks for the block gets the error of a failed readahead.
            let _ = self.load_ahead(pages, more);
        }
        Ok(len)
    }

    fn load_ahead(self, pages: &FileCache, bytes: Range<u64>) -> Result<()> {
        let mut at = bytes.start;
        while at < bytes.end {
            let end = (at + SPAN).min(bytes.end);
            let ahead = self.blocks(at, end)?;
            let expected = self.expected(&ahead)?;
            pages.span(ahead.clone()).fill(ahead, |segments| self.fill(segments, expected.as_ref()))?;
            at = end;
        }
        Ok(())
    }

    /// Reads blocks from the device. Bytes beyond i_size, and holes, become zeros. The blocks must
    /// have the digests that are `expected`.
    fn fill(self, segments: &mut [Segment<'_>], expected: Option<&Expected<'_>>) -> Result<()> {
        let fs = self.fs();
        let _timer = fs.counters.load.start();
        let (size, block_size) = (self.file.size(), u64::from(fs.block_size));
        let live = |lblk: u32, len: usize| {
            let left = size.saturating_sub(u64::from(lblk) * block_size);
            (left.min(len as u64)) as usize
        };
        let mut ops = Vec::new();
        for segment in segments.iter_mut() {
            let whole = live(segment.lblk, segment.buf.len()).next_multiple_of(block_size as usize);
            let (inside, beyond) = segment.buf.split_at_mut(whole.min(segment.buf.len()));
            beyond.fill(0);
            ops.extend(io::plan_read(fs, u64::from(segment.lblk) * block_size, inside, |lblk| {
                self.mapping(lblk)
            })?);
        }
        io::read(fs, ops, ReadPath::AsOpened)?;
        for segment in segments.iter_mut() {
            let live = live(segment.lblk, segment.buf.len());
            segment.buf[live..].fill(0);
        }
        expected.map_or(Ok(()), |expected| expected.check(segments, fs.block_size))
    }

    /// Reads past this cache, for a caller with its own cache, unless this cache has newer bytes or
    /// has to verify them.
    ///
    /// # Errors
    /// The device's; a damaged map.
    pub(super) fn read_past(self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let fs = self.fs();
        let end = offset.saturating_add(buf.len() as u64);
        let Some(held) = self.share_unverified(offset, end) else { return self.read_cached(buf, offset) };
        let len = self.before_end(offset, buf.len());
        // The last block is read whole: the bytes behind the end are zeros, and the caller ignores
        // them.
        let whole = len.next_multiple_of(fs.block_size as usize).min(buf.len());
        if whole > 0 && self.is_busy(self.blocks(offset, offset + whole as u64)?) {
            drop(held);
            return self.read_cached(buf, offset);
        }
        let _timer = fs.counters.read_direct.start();
        self.read_held(&mut buf[..whole], offset, ReadPath::AsOpened)?;
        Ok(len)
    }

    /// Returns whether `len` bytes at `offset`, for a caller with its own cache, go past this
    /// cache.
    pub(super) fn goes_past(self, offset: u64, len: usize) -> bool {
        len >= self.fs().options.past_cache && offset.is_multiple_of(self.fs().block_size.into())
    }

    /// Writes through the cache. With [`Stamp::Kept`] the write was allowed when the caller
    /// accepted it, so flags are not checked.
    ///
    /// # Errors
    /// The errors of [`write`](Self::write).
    pub(super) fn write_cached(
        self,
        bytes: &[u8],
        offset: u64,
        stamp: Stamp,
        done: &mut usize,
    ) -> Result<()> {
        self.fs().check_writable()?;
        let end = end_of(bytes, offset)?;
        if bytes.is_empty() {
            return Ok(());
        }
        if let Some(pages) = self.file.pages_if_used() {
            pages.prefetch(offset);
        }
        let _timer = self.fs().counters.write.start();
        self.throttle()?;
        let _held = self.lock_to_write(offset, end)?;
        match stamp {
            Stamp::Now => self.check_write(offset, end)?,
            Stamp::Kept => self.check_end(end)?,
        }
        self.write_pages(offset, bytes, stamp, done)
    }

    /// Sets `at` to the end, and writes all of `bytes` there.
    ///
    /// # Errors
    /// The errors of [`write`](Self::write).
    pub(super) fn append_cached(self, bytes: &[u8], at: &mut u64, done: &mut usize) -> Result<()> {
        self.fs().check_writable()?;
        let _timer = self.fs().counters.write.start();
        self.throttle()?;
        let (_held, end) = self.lock_end()?;
        *at = end;
        if bytes.is_empty() {
            return Ok(());
        }
        self.check_write(end, end_of(bytes, end)?)?;
        self.write_pages(end, bytes, Stamp::Now, done)
    }

    fn write_pages(self, offset: u64, bytes: &[u8], stamp: Stamp, done: &mut usize) -> Result<()> {
        let size = self.file.size();
        if offset > size {
            self.zero_gap(size, offset)?;
        }
        let pages = self.pages();
        let behind = |at: u64| &bytes[(at - offset) as usize..];
        let mut at = offset;
        let ended = loop {
            let left = behind(at);
            if left.is_empty() {
                break Ok(());
            }
            let now = &left[..left.len().min((SPAN - at % SPAN) as usize)];
            match self.copy_in(pages, &mut at, now) {
                Ok(()) => {}
                // A dirty page claims blocks for the worst case of its map. A direct write takes
                // only the blocks that it needs.
                Err(Error::NoSpace) => break self.write_held(behind(at), at, stamp, done),
                Err(e) => break Err(e),
            }
        };
        // For the part that was written: an error may have ended the loop.
        if at > offset {
            self.touch(stamp);
            *done += (at - offset) as usize;
            self.journal_each_write()?;
        }
        ended
    }

    /// Copies `bytes`, of one span, into pages at `at`, and moves `at` behind those that it has
    /// copied, also if an error ends it.
    fn copy_in(self, pages: &FileCache, at: &mut u64, bytes: &[u8]) -> Result<()> {
        let end = *at + bytes.len() as u64;
        // Blocks that are dirty already need nothing more, unless i_size has to move.
        let done = if end <= self.file.size() { pages.overwrite(*at, bytes) } else { 0 };
        *at += done as u64;
        let (from, bytes) = (*at, &bytes[done..]);
        if bytes.is_empty() {
            return Ok(());
        }
        let wanted = self.blocks(from, end)?;
        self.fs().with_room(|| {
            let mut span = pages.span(wanted.clone());
            for lblk in span.partial(from, bytes.len()) {
                span.fill(lblk..lblk.saturating_add(1), |segments| self.fill(segments, None))?;
            }
            self.claim(span.clean(wanted.clone()))?;
            span.copy_in(bytes, from);
            // Before the pages are unlocked: a writeback moves i_disksize no further than i_size.
            self.file.extend(end);
            Ok(())
        })?;
        *at = end;
        Ok(())
    }
}
