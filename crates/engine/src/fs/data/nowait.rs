//! Reads and writes that do not wait (RWF_NOWAIT) for a lock of another thread, for a block to be
//! loaded, or for one to be allocated. They return what was done until they would have to wait.
//!
//! They do wait for locks that are held briefly, and for blocks of the map that are not cached.

use super::buffered::SPAN;
use super::content::{Content, Via, end_of};
use crate::error::{Error, Result};
use crate::fs::IVersion;
use crate::fs::file::cache::{FileCache, Pressure};
use crate::fs::file::times::Stamp;
use crate::store::io::ReadPath;

impl Content<'_> {
    /// Reads cached bytes from byte `offset` on. Returns how many: 0 only at the end.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] with nothing read; a damaged map.
    pub(super) fn try_read_cached(self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let end = offset.saturating_add(buf.len() as u64);
        let _held = self.try_share(offset, end).ok_or(Error::WouldBlock)?;
        let len = self.before_end(offset, buf.len());
        let buf = &mut buf[..len];
        match self.file.pages_if_used().map_or(0, |pages| pages.try_read(offset, buf)) {
            0 if !buf.is_empty() => Err(Error::WouldBlock),
            done => Ok(done),
        }
    }

    /// Reads as [`try_read`](Self::try_read) does, but past the page cache: from the device, unless
    /// the cache holds newer bytes.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] with nothing read; a damaged map; the device's.
    pub(super) fn try_read_direct(self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let end = offset.saturating_add(buf.len() as u64);
        let _held = self.try_share_unverified(offset, end).ok_or(Error::WouldBlock)?;
        let len = self.before_end(offset, buf.len());
        let buf = &mut buf[..len];
        if buf.is_empty() {
            return Ok(0);
        }
        let touched = self.blocks(offset, offset + buf.len() as u64)?;
        if self.is_busy(touched) {
            return Err(Error::WouldBlock);
        }
        self.read_held(buf, offset, ReadPath::Direct)
    }

    /// Writes `bytes` through the cache or to memory, from the first on, until a block would have
    /// to be loaded or allocated. Returns how many. Without an `offset`, writes at the end.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] with nothing written; as [`write`](Self::write) otherwise.
    pub(super) fn try_write_whole(self, mut bytes: &[u8], offset: Option<u64>, via: Via) -> Result<usize> {
        let fs = self.fs();
        fs.check_writable()?;
        let start = offset.unwrap_or_else(|| self.file.size());
        let end = end_of(bytes, start)?;
        if bytes.is_empty() {
            return Ok(0);
        }
        let pressed = !matches!(fs.pages.pressure(), Pressure::Calm | Pressure::Background);
        if pressed || fs.options.modes.i_version == IVersion::Always {
            return Err(Error::WouldBlock);
        }
        let _held = self.try_lock_to_write(start, end)?;
        let size = self.file.size();
        // A gap behind the end would have to be zeroed first.
        if start > size || offset.is_none() && start != size {
            return Err(Error::WouldBlock);
        }
        self.check_write(start, end)?;
        if via == Via::Dax {
            return match self.is_plain(start, bytes.len()) && self.overwrite_held(bytes, start, Stamp::Now)? {
                true => Ok(bytes.len()),
                false => Err(Error::WouldBlock),
            };
        }
        let Some(pages) = self.file.pages_if_used() else { return Err(Error::WouldBlock) };
        let mut at = start;
        while !bytes.is_empty() {
            let now = &bytes[..bytes.len().min((SPAN - at % SPAN) as usize)];
            let copied = match self.try_copy_in(pages, now, at) {
                // What lies before is written.
                Err(_) if at > start => break,
                copied => copied?,
            };
            if copied == 0 {
                break;
            }
            (at, bytes) = (at + copied as u64, &bytes[copied..]);
        }
        if at == start {
            return Err(Error::WouldBlock);
        }
        self.touch(Stamp::Now);
        Ok((at - start) as usize)
    }

    /// Copies `bytes`, of one span, into pages at `at`, up to the first block that would have to be
    /// loaded or allocated. Returns how many.
    ///
    /// # Errors
    /// A damaged map: nothing is copied.
    fn try_copy_in(self, pages: &FileCache, bytes: &[u8], at: u64) -> Result<usize> {
        let wanted = self.blocks(at, at + bytes.len() as u64)?;
        let Some(mut span) = pages.try_span(wanted.clone()) else { return Ok(0) };
        // Up to the first block that is not allocated.
        let unready = self.unready(span.clean(wanted))?;
        let room = unready.first.map(|first| u64::from(first) * u64::from(self.fs().block_size));
        let room = room.map_or(usize::MAX, |hole| hole.saturating_sub(at) as usize);
        let now = &bytes[..bytes.len().min(room)];
        if now.is_empty() || span.partial(at, now.len()).next().is_some() {
            return Ok(0);
        }
        span.copy_in(now, at);
        // Before the pages are unlocked: a writeback moves i_disksize no further than i_size.
        self.file.extend(at + now.len() as u64);
        Ok(now.len())
    }

    /// Writes as [`try_write`](Self::try_write) does, but past the page cache: all of `bytes`, if
    /// they overwrite blocks in place.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] with nothing written; the device's; those of [`write`](Self::write).
    pub(super) fn try_write_direct(self, bytes: &[u8], offset: u64) -> Result<usize> {
        self.fs().check_writable()?;
        let end = end_of(bytes, offset)?;
        if bytes.is_empty() {
            return Ok(0);
        }
        let fs = self.fs();
        if !self.is_plain(offset, bytes.len()) {
            return Err(Error::WouldBlock);
        }
        let _held = self.try_share_to_write(offset, end)?;
        let _timer = fs.counters.write_direct.start();
        match self.overwrite_held(bytes, offset, Stamp::Now)? {
            true => Ok(bytes.len()),
            false => {
                fs.counters.planned.add(1);
                Err(Error::WouldBlock)
            }
        }
    }
}
