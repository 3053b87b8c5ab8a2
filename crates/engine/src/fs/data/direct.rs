//! Writes past the page cache: direct I/O, and memory that persists (DAX).
//!
//! An overwrite in place of blocks that are mapped, written and inside of i_disksize goes straight
//! to its blocks. It locks its bytes shared, which keeps threads away that move blocks. It starts
//! no handle, allocates nothing, and writes no memory that other writers of the file write, except
//! the time stamp once a tick. Every other write locks its blocks exclusively, is planned
//! ([`Plan`]), and ends with a handle.
//!
//! Overwrites that overlap in time leave a mixture in the blocks, as in the kernel: a program that
//! needs an order between its direct writes waits for one before it issues the next.

use super::plan::Plan;
use super::times::Stamp;
use super::{FileData, io, journal_each_write, max_size, place, write_back, zero_before};
use crate::error::{Error, Result};
use crate::fs::inode::Node;
use crate::fs::{IVersion, Overwrite};
use crate::store::map::{self, Mapping};
use lanefs_format::InodeFlags;
use std::ops::Range;

/// Bytes that are planned at a time: a multiple of every block size.
const BATCH: u64 = 8 << 20;

/// Writes all of `bytes` at `offset`. Bytes between the old end and `offset` read as zeros.
///
/// # Errors
/// [`Error::FileTooBig`], [`Error::NotPermitted`]: nothing is written. [`Error::NoSpace`], or the
/// device's: a part may be.
pub(crate) fn write(node: &Node, offset: u64, bytes: &[u8]) -> Result<()> {
    write_as(node, offset, bytes, How::Direct)
}

/// Writes as [`write`] does, but a concurrent reader sees all of it or none.
pub(crate) fn write_whole(node: &Node, offset: u64, bytes: &[u8]) -> Result<()> {
    write_as(node, offset, bytes, How::Whole)
}

/// Writes as [`write_whole`] does, but no flag of the inode refuses it: a caller with its own cache
/// accepted the bytes when the write was allowed.
pub(crate) fn write_whole_late(node: &Node, offset: u64, bytes: &[u8]) -> Result<()> {
    write_as(node, offset, bytes, How::WholeLate)
}

/// Writes bytes that a caller with its own cache accepted when the write was allowed, whatever
/// flags the inode has now.
///
/// Such a caller knows its own size and times, so no time changes here. i_size moves before the
/// bytes are written, so that threads write pieces of a growing file in any order: a reader
/// meanwhile finds zeros.
///
/// # Errors
/// [`Error::FileTooBig`], [`Error::CutShort`]: nothing is changed. [`Error::NoSpace`], or the
/// device's: a part may be written, and i_size stays where it was moved, as after a failed
/// writeback in the kernel. i_disksize moves past no byte of this write that is not on the device.
pub(crate) fn write_late(node: &Node, offset: u64, bytes: &[u8]) -> Result<()> {
    let end = offset.checked_add(bytes.len() as u64).ok_or(Error::FileTooBig)?;
    node.fs.check_writable()?;
    check_end(node, end)?;
    let file = node.file();
    if end > file.size() {
        let _held = file.lock_to_write(node, offset, end);
        check_end(node, end)?;
        zero_before(node, file, offset)?;
        file.extend(end);
    }
    write_as(node, offset, bytes, How::Late)
}

/// The guarantees of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    /// Concurrent readers may see a part of it.
    Direct,
    /// Concurrent readers see all of it or none.
    Whole,
    /// Flags do not refuse it: it was allowed when a caller with its own cache accepted it.
    Late,
    /// [`Whole`](Self::Whole) and [`Late`](Self::Late).
    WholeLate,
}

impl How {
    fn is_whole(self) -> bool {
        matches!(self, Self::Whole | Self::WholeLate)
    }

    fn is_late(self) -> bool {
        matches!(self, Self::Late | Self::WholeLate)
    }

    fn stamp(self) -> Stamp {
        if self.is_late() { Stamp::Kept } else { Stamp::Now }
    }
}

fn write_as(node: &Node, offset: u64, bytes: &[u8], how: How) -> Result<()> {
    let fs = &*node.fs;
    fs.check_writable()?;
    let end = offset.checked_add(bytes.len() as u64).ok_or(Error::FileTooBig)?;
    if bytes.is_empty() {
        return Ok(());
    }
    let _timer = fs.counters.write_direct.start();
    let file = node.file();
    let plain = is_plain(node, offset, bytes.len());
    if plain && !how.is_whole() {
        let _held = file.share(node, offset, end);
        if overwrite_held(node, file, offset, bytes, how.stamp())? {
            return Ok(());
        }
    }
    let _held = file.lock_to_write(node, offset, end);
    if plain && how.is_whole() && overwrite_held(node, file, offset, bytes, how.stamp())? {
        return Ok(());
    }
    fs.counters.planned.add(1);
    match how.is_late() {
        true => check_end(node, end)?,
        false => check_write(node, file, offset, end)?,
    }
    write_held(node, file, offset, bytes, how.stamp())
}

/// Writes all of `bytes` at the end. Returns where that was.
///
/// # Errors
/// Those of [`write`].
pub(crate) fn append(node: &Node, bytes: &[u8]) -> Result<u64> {
    node.fs.check_writable()?;
    let _timer = node.fs.counters.write_direct.start();
    node.fs.counters.planned.add(1);
    let file = node.file();
    let (_held, end) = file.lock_end(node);
    if !bytes.is_empty() {
        check_write(node, file, end, end.checked_add(bytes.len() as u64).ok_or(Error::FileTooBig)?)?;
        write_held(node, file, end, bytes, Stamp::Now)?;
    }
    Ok(end)
}

/// Whether the modes allow an overwrite in place. It must be whole sectors: a part of a sector is
/// read, changed and written back, which needs the exclusive lock.
pub(super) fn is_plain(node: &Node, offset: u64, len: usize) -> bool {
    let modes = &node.fs.options.modes;
    modes.overwrite == Overwrite::NoJournal
        && modes.i_version == IVersion::Queried
        && io::is_whole(&node.fs, offset, len)
}

/// Overwrites blocks in place: whole sectors that are locked. Returns `false` if not all blocks are
/// mapped and written, or if they cannot be written now: the caller then locks the bytes
/// exclusively.
pub(super) fn overwrite_held(
    node: &Node,
    file: &FileData,
    offset: u64,
    bytes: &[u8],
    stamp: Stamp,
) -> Result<bool> {
    let fs = &*node.fs;
    let end = offset.saturating_add(bytes.len() as u64);
    if end > file.disk_size() {
        return Ok(false);
    }
    let touched = place(fs, offset)?.0..place(fs, end - 1)?.0.saturating_add(1);
    // Nor may a writeback hold older content of them.
    if file.pages_if_used().is_some_and(|pages| pages.is_busy(touched.clone())) {
        return Ok(false);
    }
    let Some(first) = run_at(node, file, offset)? else { return Ok(false) };
    let mut at = offset.saturating_add(first.1);
    while at < end {
        match run_at(node, file, at)? {
            Some((_, len)) => at = at.saturating_add(len),
            None => return Ok(false),
        }
    }
    // Mostly all bytes lie in one run, and one lookup is enough.
    let (mut at, mut rest, mut known) = (offset, bytes, Some(first));
    while !rest.is_empty() {
        let run = match known.take() {
            Some(run) => Some(run),
            None => run_at(node, file, at)?,
        };
        let Some((byte, len)) = run else { return Ok(false) };
        let (now, later) = rest.split_at(rest.len().min(usize::try_from(len).unwrap_or(usize::MAX)));
        match io::write_one(fs, byte, now) {
            // A thread that locks the bytes exclusively waits until no caller has a slice of them.
            Err(e) if io::is_lent(fs, &e) => return Ok(false),
            written => written?,
        }
        (at, rest) = (at + now.len() as u64, later);
    }
    overwritten(node, file, touched, stamp);
    Ok(true)
}

/// Adds to `places` where the bytes of an overwrite lie on the device. Returns `false` if not all
/// blocks can be overwritten in place, as in [`overwrite_held`].
pub(super) fn plan_overwrite<'b>(
    node: &Node,
    file: &FileData,
    mut offset: u64,
    mut bytes: &'b [u8],
    places: &mut Vec<(u64, &'b [u8])>,
) -> Result<bool> {
    while !bytes.is_empty() {
        let Some((byte, len)) = run_at(node, file, offset)? else { return Ok(false) };
        let (now, later) = bytes.split_at(bytes.len().min(usize::try_from(len).unwrap_or(usize::MAX)));
        places.push((byte, now));
        (offset, bytes) = (offset + now.len() as u64, later);
    }
    Ok(true)
}

/// Notes that blocks were overwritten on the device. The caller holds the lock of their bytes.
pub(super) fn overwritten(node: &Node, file: &FileData, touched: Range<u32>, stamp: Stamp) {
    if file.pages_if_used().is_some() {
        // A reader may have cached the old content meanwhile.
        file.drop_pages(touched);
    }
    file.wrote(&node.fs);
    file.touch(node, stamp);
}

/// Returns the device's byte for byte `at` of the file, and how many are contiguous from there.
/// `None` if `at` is not mapped and written, or if the file must not be overwritten.
fn run_at(node: &Node, file: &FileData, at: u64) -> Result<Option<(u64, u64)>> {
    let fs = &*node.fs;
    let (lblk, inner) = place(fs, at)?;
    let bytes = |(block, len): (u64, u32)| {
        (fs.byte_of(block) + inner as u64, u64::from(len) * u64::from(fs.block_size) - inner as u64)
    };
    if let Some(run) = file.snapshot.find(lblk) {
        return Ok(Some(bytes(run)));
    }
    if file.snapshot.miss(node)? {
        file.expect_overwrites();
    }
    let state = node.state();
    if state.flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND) {
        return Ok(None);
    }
    Ok(match map::lookup(fs, node.ino, &state, lblk)? {
        Mapping::Mapped { block, len, unwritten: false } => Some(bytes((block, len))),
        _ => None,
    })
}

/// Checks that a write of `offset..end` is allowed.
pub(super) fn check_write(node: &Node, file: &FileData, offset: u64, end: u64) -> Result<()> {
    let flags = node.flags();
    if flags.contains(InodeFlags::IMMUTABLE) {
        return Err(Error::NotPermitted("the inode is immutable"));
    }
    if flags.contains(InodeFlags::APPEND) && offset != file.size() {
        return Err(Error::NotPermitted("the inode is append-only"));
    }
    check_end(node, end)
}

/// Checks that the map can reach `end`, and that the file may grow to it.
pub(super) fn check_end(node: &Node, end: u64) -> Result<()> {
    let file = node.file();
    if end > file.size() {
        file.check_growth(node.ino)?;
    }
    if end > max_size(&node.fs, node.flags()) { Err(Error::FileTooBig) } else { Ok(()) }
}

/// Writes after all checks, with the blocks of all bytes locked exclusively. Past the page cache:
/// writes out and drops the cached pages of these blocks.
pub(super) fn write_held(
    node: &Node,
    file: &FileData,
    offset: u64,
    mut bytes: &[u8],
    stamp: Stamp,
) -> Result<()> {
    let fs = &*node.fs;
    let end = offset.checked_add(bytes.len() as u64).ok_or(Error::FileTooBig)?;
    zero_before(node, file, offset)?;
    let touched = place(fs, offset)?.0..place(fs, end - 1)?.0.saturating_add(1);
    // Writes dirty pages out first: then the cache has nothing that the device lacks.
    write_back(node, touched.clone())?;
    file.drop_pages(touched.clone());
    let mut at = offset;
    let done = loop {
        if bytes.is_empty() {
            break Ok(());
        }
        let n = bytes.len().min((BATCH - at % BATCH) as usize);
        match write_batch(node, file, at, &bytes[..n]) {
            Ok(written) => (at, bytes) = (at + written as u64, &bytes[written..]),
            Err(e) => break Err(e),
        }
    };
    // For the part that was written: a full volume may have ended the loop.
    if at > offset {
        // Before the pages are dropped: readahead in between would cache zeros for bytes that were
        // still behind the end.
        file.extend(at);
        file.drop_pages(touched);
        file.wrote(fs);
        file.touch(node, stamp);
        journal_each_write(node)?;
    }
    done
}

/// Writes as many of `bytes` as one handle maps, at least one. Returns how many.
fn write_batch(node: &Node, file: &FileData, at: u64, bytes: &[u8]) -> Result<usize> {
    node.fs.with_room(|| plan_batch(node, file, at, bytes))
}

fn plan_batch(node: &Node, file: &FileData, mut at: u64, mut bytes: &[u8]) -> Result<usize> {
    let fs = &*node.fs;
    let (block_size, start) = (fs.block_size as usize, at);
    let mut plan = Plan::default();
    let mut writes = Vec::new();
    while !bytes.is_empty() {
        let (lblk, inner) = place(fs, at)?;
        // At most a batch's blocks.
        let wanted = (inner + bytes.len()).div_ceil(block_size) as u32;
        let piece = match plan.place(node, file, lblk, wanted) {
            Ok(Some(piece)) => piece,
            Ok(None) => break,
            Err(Error::NoSpace) if at > start => break,
            Err(e) => return Err(e),
        };
        let n = bytes.len().min(piece.blocks as usize * block_size - inner);
        let (body, later) = bytes.split_at(n);
        let offset = fs.byte_of(piece.block);
        // Newly allocated blocks are written whole.
        writes.push(match piece.fresh {
            true => {
                io::Write { offset, head: inner, body, tail: piece.blocks as usize * block_size - inner - n }
            }
            false => io::Write { offset: offset + inner as u64, head: 0, body, tail: 0 },
        });
        (at, bytes) = (at + n as u64, later);
    }
    plan.carry_out(node, at, || io::write(fs, &writes))?;
    Ok((at - start) as usize)
}
