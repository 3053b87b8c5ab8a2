//! Reading and writing through the page cache.
//!
//! A write locks its bytes exclusively and a read locks them shared, so a read sees all of a write
//! or none of it. Writers of disjoint blocks do not wait for each other. A write copies into pages,
//! and claims space for blocks that are not allocated yet. A read copies out of pages, and loads
//! missing ones: with readahead, if it goes on where the last read ended.
//!
//! Callers with their own cache (the kernel, above a mount) transfer many blocks at once. These go
//! past this cache ([`write_late`], [`read_for_cache`]): a second copy of them would not be read
//! again.
//!
//! On a device that is memory nothing is cached (DAX): reads and writes go past the cache, with the
//! same guarantees.

use super::cache::{FileCache, Segment};
use super::direct::{self, check_end, check_write};
use super::times::Stamp;
use super::{FileData, delayed, io, journal_each_write, mapping, place, zero_gap};
use crate::error::{Error, Result};
use crate::fs::inode::Node;
use std::ops::Range;

/// Bytes whose pages are locked at a time.
pub(super) const SPAN: u64 = 256 << 10;
/// Bytes from which on a request of a caller with its own cache goes past this one.
const PAST: usize = 128 << 10;

/// Reads from byte `offset` on into `buf`. Returns how many bytes there were before i_size.
pub(crate) fn read(node: &Node, offset: u64, buf: &mut [u8]) -> Result<usize> {
    if node.fs.dax {
        return super::read_direct(node, offset, buf);
    }
    let _timer = node.fs.counters.read.start();
    let file = node.file();
    let end = offset.saturating_add(buf.len() as u64);
    let _held = file.share(node, offset, end);
    let len = end.min(file.size()).saturating_sub(offset) as usize;
    let Some(buf) = buf.get_mut(..len) else { return Ok(0) };
    let pages = file.pages(node);
    let more = file.read_ahead(offset..offset + len as u64);
    let mut done = 0;
    while done < len {
        done += pages.read(offset + done as u64, &mut buf[done..]);
        if done == len {
            break;
        }
        let at = offset + done as u64;
        let missing = blocks(node, at, (offset + len as u64).min(at.saturating_add(SPAN)))?;
        let mut span = pages.span(missing.clone());
        span.fill(missing, |segments| fill(node, file, segments))?;
        // Copies while the span is locked: once it is unlocked, another thread's pages may evict
        // these.
        done += span.copy_out(&mut buf[done..], at);
    }
    if !more.is_empty() {
        load_ahead(node, file, pages, more)?;
    }
    Ok(len)
}

fn load_ahead(node: &Node, file: &FileData, pages: &FileCache, bytes: Range<u64>) -> Result<()> {
    let mut at = bytes.start;
    while at < bytes.end {
        let end = (at + SPAN).min(bytes.end);
        let ahead = blocks(node, at, end)?;
        pages.span(ahead.clone()).fill(ahead, |segments| fill(node, file, segments))?;
        at = end;
    }
    Ok(())
}

/// Returns the blocks that hold `offset..end`.
pub(super) fn blocks(node: &Node, offset: u64, end: u64) -> Result<Range<u32>> {
    let (first, _) = place(&node.fs, offset)?;
    let (last, _) = place(&node.fs, end.max(offset + 1) - 1)?;
    Ok(first..last.saturating_add(1))
}

/// Reads blocks from the device. Bytes beyond i_size, and holes, become zeros.
fn fill(node: &Node, file: &FileData, segments: &mut [Segment<'_>]) -> Result<()> {
    let fs = &*node.fs;
    let _timer = fs.counters.load.start();
    let (size, block_size) = (file.size(), u64::from(fs.block_size));
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
            mapping(node, file, lblk)
        })?);
    }
    io::read(fs, ops)?;
    for segment in segments {
        let live = live(segment.lblk, segment.buf.len());
        segment.buf[live..].fill(0);
    }
    Ok(())
}

/// Writes all of `bytes` at `offset`. Bytes between the old end and `offset` read as zeros.
///
/// # Errors
/// [`Error::FileTooBig`], [`Error::NotPermitted`]: nothing is written. [`Error::NoSpace`], or the
/// device's: a part may be.
pub(crate) fn write(node: &Node, offset: u64, bytes: &[u8]) -> Result<()> {
    if node.fs.dax {
        return direct::write_whole(node, offset, bytes);
    }
    write_checked(node, offset, bytes, Stamp::Now)
}

/// Writes bytes that a caller with its own cache accepted when the write was allowed: flags that
/// the inode got since do not refuse it, and no time changes, because that caller keeps the times
/// too. Many whole blocks go straight to the device.
///
/// # Errors
/// Those of [`direct::write_late`].
pub(crate) fn write_late(node: &Node, offset: u64, bytes: &[u8]) -> Result<()> {
    if node.fs.dax {
        return direct::write_whole_late(node, offset, bytes);
    }
    let block = node.fs.block_size as usize;
    let whole = bytes.len() / block * block;
    if !goes_past(node, offset, whole) {
        return write_checked(node, offset, bytes, Stamp::Kept);
    }
    direct::write_late(node, offset, &bytes[..whole])?;
    write_checked(node, offset + whole as u64, &bytes[whole..], Stamp::Kept)
}

/// Reads as [`read`] does, for a caller with its own cache: many blocks come straight from the
/// device, unless this cache has newer ones.
///
/// # Errors
/// The device's; a damaged map.
pub(crate) fn read_for_cache(node: &Node, offset: u64, buf: &mut [u8]) -> Result<usize> {
    let fs = &*node.fs;
    if fs.dax || !goes_past(node, offset, buf.len()) {
        return read(node, offset, buf);
    }
    let file = node.file();
    let held = file.share(node, offset, offset.saturating_add(buf.len() as u64));
    let len = buf.len().min(usize::try_from(file.size().saturating_sub(offset)).unwrap_or(usize::MAX));
    // The last block is read whole: the bytes behind the end are zeros, and the caller ignores
    // them.
    let whole = len.next_multiple_of(fs.block_size as usize).min(buf.len());
    let busy = match file.pages_if_used() {
        Some(pages) if whole > 0 => pages.is_busy(blocks(node, offset, offset + whole as u64)?),
        _ => false,
    };
    if busy {
        drop(held);
        return read(node, offset, buf);
    }
    let _timer = fs.counters.read_direct.start();
    super::read::read_held(node, file, offset, &mut buf[..whole])?;
    Ok(len)
}

/// Returns whether `len` bytes at `offset`, for a caller with its own cache, go past this cache.
fn goes_past(node: &Node, offset: u64, len: usize) -> bool {
    len >= PAST && offset.is_multiple_of(node.fs.block_size.into())
}

/// Writes through the cache. With [`Stamp::Kept`] the write was allowed when the caller accepted
/// it, so flags are not checked.
fn write_checked(node: &Node, offset: u64, bytes: &[u8], stamp: Stamp) -> Result<()> {
    node.fs.check_writable()?;
    let end = offset.checked_add(bytes.len() as u64).ok_or(Error::FileTooBig)?;
    if bytes.is_empty() {
        return Ok(());
    }
    let _timer = node.fs.counters.write.start();
    let file = node.file();
    node.fs.throttle(node)?;
    let _held = file.lock_to_write(node, offset, end);
    match stamp {
        Stamp::Now => check_write(node, file, offset, end)?,
        Stamp::Kept => check_end(node, end)?,
    }
    write_held(node, file, offset, bytes, stamp)
}

/// Writes all of `bytes` at the end. Returns where that was.
///
/// # Errors
/// Those of [`write`].
pub(crate) fn append(node: &Node, bytes: &[u8]) -> Result<u64> {
    if node.fs.dax {
        return direct::append(node, bytes);
    }
    node.fs.check_writable()?;
    let _timer = node.fs.counters.write.start();
    let file = node.file();
    node.fs.throttle(node)?;
    let (_held, end) = file.lock_end(node);
    if !bytes.is_empty() {
        check_write(node, file, end, end.checked_add(bytes.len() as u64).ok_or(Error::FileTooBig)?)?;
        write_held(node, file, end, bytes, Stamp::Now)?;
    }
    Ok(end)
}

fn write_held(node: &Node, file: &FileData, offset: u64, mut bytes: &[u8], stamp: Stamp) -> Result<()> {
    let size = file.size();
    if offset > size {
        zero_gap(node, size, offset)?;
    }
    let pages = file.pages(node);
    let mut at = offset;
    let done = loop {
        if bytes.is_empty() {
            break Ok(());
        }
        let (now, later) = bytes.split_at(bytes.len().min((SPAN - at % SPAN) as usize));
        match copy_in(node, file, pages, at, now) {
            Ok(()) => (at, bytes) = (at + now.len() as u64, later),
            // A dirty page claims blocks for the worst case of its map. A direct write takes only
            // the blocks that it needs.
            Err(Error::NoSpace) => break direct::write_held(node, file, at, bytes, stamp),
            Err(e) => break Err(e),
        }
    };
    // For the part that was written: a full volume may have ended the loop.
    if at > offset {
        file.touch(node, stamp);
        journal_each_write(node)?;
    }
    done
}

fn copy_in(node: &Node, file: &FileData, pages: &FileCache, at: u64, bytes: &[u8]) -> Result<()> {
    // Blocks that are dirty already need nothing more, unless i_size has to move.
    let inside = at + bytes.len() as u64 <= file.size();
    let done = if inside { pages.overwrite(at, bytes) } else { 0 };
    let (at, bytes) = (at + done as u64, &bytes[done..]);
    if bytes.is_empty() {
        return Ok(());
    }
    let wanted = blocks(node, at, at + bytes.len() as u64)?;
    node.fs.with_room(|| {
        let mut span = pages.span(wanted.clone());
        for lblk in span.partial(at, bytes.len()) {
            span.fill(lblk..lblk.saturating_add(1), |segments| fill(node, file, segments))?;
        }
        delayed::claim(node, file, &span.clean(wanted.clone()))?;
        span.copy_in(bytes, at);
        // Before the pages are unlocked: a writeback moves i_disksize no further than i_size.
        file.extend(at + bytes.len() as u64);
        Ok(())
    })
}
