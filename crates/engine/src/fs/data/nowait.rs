//! Reads and writes that do not wait (RWF_NOWAIT) for a lock of another thread, for a block to be
//! loaded, or for one to be allocated. They return what was done until they would have to wait.
//!
//! They do wait for locks that are held briefly, and for blocks of the map that are not cached.

use super::buffered::{SPAN, blocks};
use super::cache::Pressure;
use super::direct::{check_write, is_plain, overwrite_held};
use super::read::read_held;
use super::times::Stamp;
use super::{FileData, delayed};
use crate::error::{Error, Result};
use crate::fs::IVersion;
use crate::fs::inode::Node;

/// Reads cached bytes from byte `offset` on. Returns how many: 0 only at the end.
///
/// # Errors
/// [`Error::WouldBlock`] with nothing read; a damaged map.
pub(crate) fn try_read(node: &Node, offset: u64, buf: &mut [u8]) -> Result<usize> {
    if node.fs.dax {
        return try_read_direct(node, offset, buf);
    }
    let file = node.file();
    let end = offset.saturating_add(buf.len() as u64);
    let _held = file.try_share(node, offset, end).ok_or(Error::WouldBlock)?;
    let buf = before_end(file, offset, buf);
    match file.pages_if_used().map_or(0, |pages| pages.try_read(offset, buf)) {
        0 if !buf.is_empty() => Err(Error::WouldBlock),
        done => Ok(done),
    }
}

/// Reads as [`try_read`] does, but past the page cache: from the device, unless the cache holds
/// newer bytes.
///
/// # Errors
/// [`Error::WouldBlock`] with nothing read; a damaged map; the device's.
pub(crate) fn try_read_direct(node: &Node, offset: u64, buf: &mut [u8]) -> Result<usize> {
    let file = node.file();
    let end = offset.saturating_add(buf.len() as u64);
    let _held = file.try_share(node, offset, end).ok_or(Error::WouldBlock)?;
    let buf = before_end(file, offset, buf);
    if buf.is_empty() {
        return Ok(0);
    }
    let touched = blocks(node, offset, offset + buf.len() as u64)?;
    if file.pages_if_used().is_some_and(|pages| pages.is_busy(touched)) {
        return Err(Error::WouldBlock);
    }
    read_held(node, file, offset, buf)
}

fn before_end<'b>(file: &FileData, offset: u64, buf: &'b mut [u8]) -> &'b mut [u8] {
    let left = file.size().saturating_sub(offset);
    let len = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
    &mut buf[..len]
}

/// Writes `bytes` from the first on, until a block would have to be loaded or allocated. Returns
/// how many. Without an `offset`, writes at the end.
///
/// # Errors
/// [`Error::WouldBlock`] with nothing written; as [`write`](super::write) otherwise.
pub(crate) fn try_write(node: &Node, offset: Option<u64>, mut bytes: &[u8]) -> Result<usize> {
    let (fs, file) = (&*node.fs, node.file());
    fs.check_writable()?;
    let start = offset.unwrap_or_else(|| file.size());
    let end = start.checked_add(bytes.len() as u64).ok_or(Error::FileTooBig)?;
    if bytes.is_empty() {
        return Ok(0);
    }
    let pressed = !matches!(fs.pages.pressure(), Pressure::Calm | Pressure::Background);
    if pressed || fs.options.modes.i_version == IVersion::Always {
        return Err(Error::WouldBlock);
    }
    let _held = file.try_lock_to_write(node, start, end).ok_or(Error::WouldBlock)?;
    let size = file.size();
    // A gap behind the end would have to be zeroed first.
    if start > size || offset.is_none() && start != size {
        return Err(Error::WouldBlock);
    }
    check_write(node, file, start, end)?;
    if fs.dax {
        return match is_plain(node, start, bytes.len())
            && overwrite_held(node, file, start, bytes, Stamp::Now)?
        {
            true => Ok(bytes.len()),
            false => Err(Error::WouldBlock),
        };
    }
    let Some(pages) = file.pages_if_used() else { return Err(Error::WouldBlock) };
    let mut at = start;
    while !bytes.is_empty() {
        let now = &bytes[..bytes.len().min((SPAN - at % SPAN) as usize)];
        let wanted = blocks(node, at, at + now.len() as u64)?;
        let Some(mut span) = pages.try_span(wanted.clone()) else { break };
        // Up to the first block that is not allocated.
        let unready = delayed::unready(node, file, &span.clean(wanted))?;
        let firsts = [unready.holes.first(), unready.unwritten.first()];
        let room = firsts.into_iter().flatten().map(|run| run.start).min();
        let room = room.map(|first| u64::from(first) * u64::from(fs.block_size));
        let room = room.map_or(usize::MAX, |hole| hole.saturating_sub(at) as usize);
        let now = &now[..now.len().min(room)];
        if now.is_empty() || span.partial(at, now.len()).next().is_some() {
            break;
        }
        span.copy_in(now, at);
        // Before the pages are unlocked: a writeback moves i_disksize no further than i_size.
        file.extend(at + now.len() as u64);
        (at, bytes) = (at + now.len() as u64, &bytes[now.len()..]);
    }
    if at == start {
        return Err(Error::WouldBlock);
    }
    file.touch(node, Stamp::Now);
    Ok((at - start) as usize)
}

/// Writes as [`try_write`] does, but past the page cache: all of `bytes`, if they overwrite blocks
/// in place.
///
/// # Errors
/// [`Error::WouldBlock`] with nothing written; the device's; those of [`write`](super::write).
pub(crate) fn try_write_direct(node: &Node, offset: u64, bytes: &[u8]) -> Result<usize> {
    node.fs.check_writable()?;
    let end = offset.checked_add(bytes.len() as u64).ok_or(Error::FileTooBig)?;
    if bytes.is_empty() {
        return Ok(0);
    }
    let (fs, file) = (&*node.fs, node.file());
    if !is_plain(node, offset, bytes.len()) {
        return Err(Error::WouldBlock);
    }
    let _held = file.try_share(node, offset, end).ok_or(Error::WouldBlock)?;
    let _timer = fs.counters.write_direct.start();
    match overwrite_held(node, file, offset, bytes, Stamp::Now)? {
        true => Ok(bytes.len()),
        false => {
            fs.counters.planned.add(1);
            Err(Error::WouldBlock)
        }
    }
}
