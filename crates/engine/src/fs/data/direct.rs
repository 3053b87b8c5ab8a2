//! Writes past the page cache: direct I/O, and memory that persists (DAX).
//!
//! An overwrite in place of blocks that are mapped, written and inside of i_disksize goes straight
//! to its blocks. It locks its bytes shared, which keeps threads away that move blocks. It starts
//! no handle, allocates nothing, and writes no memory that other writers of the file write, except
//! the time stamp once a tick and the flush ticket once a flush. Every other write locks its blocks
//! exclusively, is planned ([`WritePlan`](super::plan::WritePlan)), and ends with a handle.
//!
//! Hazard: overwrites that overlap in time leave a mixture in the blocks, as in the kernel. A
//! program that needs an order between its direct writes waits for one before it issues the next.

use super::content::{Content, end_of};
use super::{NOT_OVERWRITTEN, io, place};
use crate::error::Result;
use crate::fs::file::times::Stamp;
use crate::fs::{IVersion, Overwrite};
use crate::store::map::{self, Mapping};
use std::ops::Range;

impl Content<'_> {
    /// Writes all of `bytes` at `offset`, for [`write`](Self::write).
    pub(super) fn write_direct(self, bytes: &[u8], offset: u64, done: &mut usize) -> Result<()> {
        self.write_as(bytes, offset, How::Direct, done)
    }

    /// Writes as [`write_direct`](Self::write_direct) does, but a concurrent reader sees all of it
    /// or none. With [`Stamp::Kept`] no flag of the inode refuses it: a caller with its own cache
    /// accepted the bytes when the write was allowed.
    pub(super) fn write_whole(self, bytes: &[u8], offset: u64, stamp: Stamp, done: &mut usize) -> Result<()> {
        match stamp {
            Stamp::Now => self.write_as(bytes, offset, How::Whole, done),
            Stamp::Kept => self.write_as(bytes, offset, How::WholeLate, done),
        }
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
    /// writeback in the kernel. i_disksize moves past no byte of this write that is not on the
    /// device.
    pub(super) fn write_past(self, bytes: &[u8], offset: u64) -> Result<()> {
        let end = end_of(bytes, offset)?;
        self.fs().check_writable()?;
        self.check_end(end)?;
        let grows = end > self.file.size();
        if grows {
            let _held = self.lock_to_write(offset, end)?;
            self.check_end(end)?;
            self.zero_before(offset)?;
            self.file.extend(end);
        }
        let written = self.write_as(bytes, offset, How::Late, &mut 0);
        if grows && written.is_err() {
            // i_size has moved, whatever became of the bytes.
            self.touch(Stamp::Kept);
        }
        written
    }
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

impl Content<'_> {
    fn write_as(self, bytes: &[u8], offset: u64, how: How, done: &mut usize) -> Result<()> {
        let fs = self.fs();
        fs.check_writable()?;
        let end = end_of(bytes, offset)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let _timer = fs.counters.write_direct.start();
        let plain = self.is_plain(offset, bytes.len());
        if plain && !how.is_whole() {
            let _held = self.share_to_write(offset, end)?;
            if self.overwrite_held(bytes, offset, how.stamp())? {
                *done += bytes.len();
                return Ok(());
            }
        }
        let _held = self.lock_to_write(offset, end)?;
        if plain && how.is_whole() && self.overwrite_held(bytes, offset, how.stamp())? {
            *done += bytes.len();
            return Ok(());
        }
        fs.counters.planned.add(1);
        match how.is_late() {
            true => self.check_end(end)?,
            false => self.check_write(offset, end)?,
        }
        self.write_held(bytes, offset, how.stamp(), done)
    }

    /// Sets `at` to the end, and writes all of `bytes` there.
    ///
    /// # Errors
    /// The errors of [`write`](Self::write).
    pub(super) fn append_direct(self, bytes: &[u8], at: &mut u64, done: &mut usize) -> Result<()> {
        self.fs().check_writable()?;
        let _timer = self.fs().counters.write_direct.start();
        self.fs().counters.planned.add(1);
        let (_held, end) = self.lock_end()?;
        *at = end;
        if bytes.is_empty() {
            return Ok(());
        }
        self.check_write(end, end_of(bytes, end)?)?;
        self.write_held(bytes, end, Stamp::Now, done)
    }

    /// Returns whether the modes allow an overwrite in place. It must be whole sectors: a part of a
    /// sector is read, changed and written back, which needs the exclusive lock.
    pub(super) fn is_plain(self, offset: u64, len: usize) -> bool {
        let modes = &self.fs().options.modes;
        modes.overwrite == Overwrite::NoJournal
            && modes.i_version == IVersion::Queried
            && io::is_whole(self.fs(), offset, len)
    }

    /// Overwrites blocks in place: whole sectors that are locked. Returns `false` if not all blocks
    /// are mapped and written, or if they cannot be written now: the caller then locks the bytes
    /// exclusively.
    pub(super) fn overwrite_held(self, bytes: &[u8], offset: u64, stamp: Stamp) -> Result<bool> {
        let end = offset.saturating_add(bytes.len() as u64);
        if end > self.file.disk_size() {
            return Ok(false);
        }
        let touched = self.blocks(offset, end)?;
        // Nor may a writeback hold older content of them.
        if self.is_busy(touched.clone()) {
            return Ok(false);
        }
        let Some(first) = self.run_at(offset)? else { return Ok(false) };
        let mut at = offset.saturating_add(first.1);
        while at < end {
            match self.run_at(at)? {
                Some((_, len)) => at = at.saturating_add(len),
                None => return Ok(false),
            }
        }
        let mut at = offset;
        let ended = self.overwrite_runs(bytes, &mut at, first);
        // Also for the runs before the one that failed.
        if at > offset {
            self.overwritten(touched, stamp);
        }
        ended
    }

    /// Overwrites the runs of `bytes` at `at`, of which the first is known, and moves `at` behind
    /// those that are written, also if an error ends it. Returns `false` as
    /// [`overwrite_held`](Self::overwrite_held) does.
    fn overwrite_runs(self, bytes: &[u8], at: &mut u64, first: (u64, u64)) -> Result<bool> {
        let fs = self.fs();
        // Mostly all bytes lie in one run, and one lookup is enough.
        let (mut rest, mut known) = (bytes, Some(first));
        while !rest.is_empty() {
            let run = match known.take() {
                Some(run) => Some(run),
                None => self.run_at(*at)?,
            };
            let Some((byte, len)) = run else { return Ok(false) };
            let (now, later) = rest.split_at(rest.len().min(usize::try_from(len).unwrap_or(usize::MAX)));
            match io::write_one(fs, byte, now) {
                // A thread that locks the bytes exclusively waits until no caller has a slice of
                // them.
                Err(e) if io::is_lent(fs, &e) => return Ok(false),
                written => written?,
            }
            *at += now.len() as u64;
            rest = later;
        }
        Ok(true)
    }

    /// Adds to `places` where the bytes of an overwrite lie on the device. Returns `false` if not
    /// all blocks can be overwritten in place, as in [`overwrite_held`](Self::overwrite_held).
    pub(super) fn plan_overwrite<'b>(
        self,
        mut bytes: &'b [u8],
        mut offset: u64,
        places: &mut Vec<(u64, &'b [u8])>,
    ) -> Result<bool> {
        while !bytes.is_empty() {
            let Some((byte, len)) = self.run_at(offset)? else { return Ok(false) };
            let (now, later) = bytes.split_at(bytes.len().min(usize::try_from(len).unwrap_or(usize::MAX)));
            places.push((byte, now));
            (offset, bytes) = (offset + now.len() as u64, later);
        }
        Ok(true)
    }

    /// Notes that blocks were overwritten on the device. The caller holds the lock of their bytes.
    pub(super) fn overwritten(self, touched: Range<u32>, stamp: Stamp) {
        if self.file.pages_if_used().is_some() {
            // A reader may have cached the old content meanwhile.
            self.file.drop_pages(touched);
        }
        self.file.wrote(self.fs());
        self.touch(stamp);
    }

    /// Returns the device's byte for byte `at` of the file, and how many are contiguous from there.
    /// `None` if `at` is not mapped and written, or if the file must not be overwritten. The caller
    /// has locked `at`, so a hash tree that is begun later waits for the overwrite.
    fn run_at(self, at: u64) -> Result<Option<(u64, u64)>> {
        let fs = self.fs();
        if self.file.check_writers().is_err() {
            return Ok(None);
        }
        let (lblk, inner) = place(fs, at)?;
        let bytes = |(block, len): (u64, u32)| {
            (fs.byte_of(block) + inner as u64, u64::from(len) * u64::from(fs.block_size) - inner as u64)
        };
        if let Some(run) = self.file.snapshot.find(lblk) {
            return Ok(Some(bytes(run)));
        }
        if self.miss() {
            self.file.expect_overwrites();
        }
        let state = self.node.state();
        if state.flags.intersects(NOT_OVERWRITTEN) {
            return Ok(None);
        }
        Ok(match map::lookup(fs, &state, lblk)? {
            Mapping::Mapped { block, len, unwritten: false } => Some(bytes((block, len))),
            _ => None,
        })
    }

    /// Checks that a write of `offset..end` is allowed.
    pub(super) fn check_write(self, offset: u64, end: u64) -> Result<()> {
        self.node.check_change(offset == self.file.size())?;
        self.check_end(end)
    }

    /// Checks that the map can reach `end`, that the file may grow to it, and that no hash tree
    /// fixes its bytes.
    pub(super) fn check_end(self, end: u64) -> Result<()> {
        self.node.check_no_verity()?;
        if end > self.file.size() {
            self.file.check_growth(self.node.ino)?;
        }
        map::check_size(self.fs(), self.node.flags(), end)
    }
}
