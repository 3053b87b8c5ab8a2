//! Finds data and holes of a file, and where its blocks lie.
//!
//! Dirty pages are written out first, so that the map is complete. Unwritten blocks are holes, and
//! so is everything behind the end of the file.
//!
//! Hazards:
//! - No digest covers the map of a file with a hash tree. A hole is reported only if the tree has
//!   the digests of zeros for it.
//! - The map of a damaged file may lead to one of its blocks a billion times. A walk along the map
//!   ends with an error after more steps than the volume's blocks allow.

use super::content::Content;
use super::{ALL, max_size, place};
use crate::error::{Corrupt, Error, Result};
use crate::store::map::{self, Mapping};
use std::ops::Range;

impl Content<'_> {
    /// Returns the first byte at or behind `offset` that is data.
    ///
    /// # Errors
    /// [`Error::NothingThere`] if there is none; a damaged map.
    pub(crate) fn seek_data(self, offset: u64) -> Result<u64> {
        self.seek(offset, true)
    }

    /// Returns the first byte at or behind `offset` that is in a hole, or the end of the file.
    ///
    /// # Errors
    /// [`Error::NothingThere`] if `offset` is not before the end; a damaged map.
    pub(crate) fn seek_hole(self, offset: u64) -> Result<u64> {
        self.seek(offset, false)
    }

    fn seek(self, offset: u64, data: bool) -> Result<u64> {
        let fs = self.fs();
        self.write_back(ALL)?;
        let _held = self.share(offset, u64::MAX);
        let size = self.file.size();
        // No map goes further, even if a damaged inode has a larger size.
        let mapped = size.min(max_size(fs, self.node.flags()));
        let nothing = Error::NothingThere { offset, size };
        if offset >= size {
            return Err(nothing);
        }
        let (mut walk, mut at) = (MapWalk::new(self), offset);
        while at < mapped {
            let (is_data, end) = walk.run(at, mapped)?;
            if is_data == data {
                return Ok(at);
            }
            at = end;
        }
        if data { Err(nothing) } else { Ok(at) }
    }

    /// Returns the first range at or behind `offset` and before i_size that is mapped and written:
    /// its start and end, in bytes.
    pub(crate) fn next_data(self, offset: u64) -> Result<Option<(u64, u64)>> {
        // Dirty pages are allocated by this.
        self.write_back(ALL)?;
        let _held = self.share(offset, u64::MAX);
        let size = self.file.size().min(max_size(self.fs(), self.node.flags()));
        let (mut walk, mut at) = (MapWalk::new(self), offset);
        while at < size {
            let (is_data, end) = walk.run(at, size)?;
            if is_data {
                return Ok(Some((at, end)));
            }
            at = end;
        }
        Ok(None)
    }
}

/// A walk along the map of a file, from its runs to the next ones.
#[derive(Debug)]
struct MapWalk<'n> {
    content: Content<'n>,
    /// Runs that it has looked up.
    runs: u64,
}

impl<'n> MapWalk<'n> {
    fn new(content: Content<'n>) -> Self {
        Self { content, runs: 0 }
    }

    /// Returns the mapping of `lblk`, which no earlier one of the walk has covered.
    ///
    /// # Errors
    /// [`Corrupt::MapRuns`]; a damaged map.
    fn map(&mut self, lblk: u32) -> Result<Mapping> {
        // Each block of the volume, of data or of the map, adds a run and a hole behind it at most,
        // and i_block a hole for each of its numbers.
        let bound = 2 * self.content.fs().layout().blocks_count() + 16;
        self.runs += 1;
        if self.runs > bound {
            return Err(Corrupt::MapRuns { ino: self.content.node.ino, lblk, bound }.into());
        }
        self.content.map(lblk)
    }

    /// Returns whether byte `at` is data, and where the run of such bytes ends: at `end` at the
    /// latest. A caller skips holes unread, so those of a file with a hash tree are verified here.
    fn run(&mut self, at: u64, end: u64) -> Result<(bool, u64)> {
        let content = self.content;
        let (lblk, inner) = place(content.fs(), at)?;
        let mapping = self.map(lblk)?;
        let len = u64::from(mapping.len()) * u64::from(content.fs().block_size) - inner as u64;
        let end = at.saturating_add(len).min(end);
        let is_data = matches!(mapping, Mapping::Mapped { unwritten: false, .. });
        if !is_data {
            content.verify_hole(content.blocks(at, end)?)?;
        }
        Ok((is_data, end))
    }
}

/// A run of a file's bytes and where they lie on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FiemapExtent {
    /// First byte in the file, the start of a block.
    pub logical: u64,
    /// First byte on the device.
    pub physical: u64,
    /// Bytes: whole blocks, which may go beyond the end of the file.
    pub len: u64,
    /// Allocated, and reads as zeros.
    pub unwritten: bool,
    /// It is the file's last extent.
    pub last: bool,
}

impl Content<'_> {
    /// Returns where the blocks that hold any of `bytes` lie: the first `most` extents.
    ///
    /// # Errors
    /// The device's, from writing out dirty pages; a damaged map.
    pub(crate) fn fiemap(self, bytes: Range<u64>, most: usize) -> Result<Vec<FiemapExtent>> {
        let fs = self.fs();
        self.write_back(ALL)?;
        let _held = self.share(0, u64::MAX);
        let size = u64::from(fs.block_size);
        let limit = map::max_blocks(fs, self.node.flags());
        let border = |block: u64| u32::try_from(block).map_or(limit, |block| block.min(limit));
        let (mut at, end) = (border(bytes.start / size), border(bytes.end.div_ceil(size)));
        let mut found: Vec<FiemapExtent> = Vec::new();
        let (mut walk, mut cut) = (MapWalk::new(self), false);
        while at < limit {
            let mapping = walk.map(at)?;
            if let Mapping::Mapped { block, len, unwritten } = mapping {
                if at >= end {
                    return Ok(found);
                }
                let (logical, physical) = (u64::from(at) * size, fs.byte_of(block));
                cut = len > end - at;
                let len = u64::from(len.min(end - at)) * size;
                let is_full = found.len() >= most;
                match found.last_mut().filter(|e| {
                    e.unwritten == unwritten && e.logical + e.len == logical && e.physical + e.len == physical
                }) {
                    Some(before) => before.len += len,
                    None if is_full => return Ok(found),
                    None => found.push(FiemapExtent { logical, physical, len, unwritten, last: false }),
                }
            }
            at = at.saturating_add(mapping.len());
        }
        // The search has reached the end of all blocks.
        if let Some(last) = found.last_mut() {
            last.last = !cut;
        }
        Ok(found)
    }
}
