//! Planned writes past the page cache: finds the place of each byte on the device, has the caller
//! put the bytes there, and maps them.

use super::content::{Content, end_of};
use super::plan::WritePlan;
use super::{io, place};
use crate::error::{Error, Result};
use crate::fs::file::times::Stamp;
use std::ops::Range;

/// Bytes that are planned at a time: a multiple of every block size.
const BATCH: u64 = 8 << 20;

/// Bytes of a file, and where on the device they are to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The first byte on the device, where the zeros before the bytes begin.
    pub offset: u64,
    /// Zeros before the bytes.
    pub head: usize,
    /// The bytes, by their place in the file.
    pub bytes: Range<u64>,
    /// Zeros behind the bytes.
    pub tail: usize,
}

/// Puts the bytes of a plan on the device.
type Write<'w> = dyn FnMut(&[Placement]) -> Result<()> + 'w;

impl Content<'_> {
    /// Writes `bytes` of the file by `write`, which gets the places of them, or of some of them. It
    /// may get the same bytes twice, with other places.
    ///
    /// # Errors
    /// Those of [`write`](Self::write), and that of `write`.
    pub(crate) fn write_placed(self, bytes: Range<u64>, write: &mut Write<'_>) -> Result<()> {
        self.fs().check_writable()?;
        if bytes.is_empty() {
            return Ok(());
        }
        let _held = self.lock_to_write(bytes.start, bytes.end)?;
        self.check_write(bytes.start, bytes.end)?;
        self.write_planned(bytes, Stamp::Now, write, &mut 0)
    }

    /// Writes whole blocks from pieces of memory that lie one behind the other in the file. Returns
    /// false, and has written nothing, if they are no whole blocks or the device does not take the
    /// memory as it is.
    ///
    /// # Errors
    /// Those of [`write`](Self::write).
    pub(crate) fn write_gathered(self, pieces: &[&[u8]], offset: u64) -> Result<bool> {
        let fs = self.fs();
        let len: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        let is_whole = |n: u64| n.is_multiple_of(fs.block_size.into());
        let is_straight = pieces.iter().all(|piece| io::is_straight(fs, offset, piece));
        if fs.dax || !is_straight || !is_whole(offset) || !is_whole(len) {
            return Ok(false);
        }
        let _timer = fs.counters.write_direct.start();
        fs.counters.planned.add(1);
        self.write_placed(offset..offset.saturating_add(len), &mut |places| {
            let parts = places.iter().map(|place| {
                let Range { start, end } = place.bytes;
                (place.offset, parts(pieces, (start - offset) as usize..(end - offset) as usize))
            });
            io::write_pieces(fs, parts.collect::<Vec<_>>().iter())
        })?;
        Ok(true)
    }

    /// Writes after all checks, with the blocks of all bytes locked exclusively. Adds to `done` how
    /// many bytes are written.
    pub(super) fn write_held(self, bytes: &[u8], offset: u64, stamp: Stamp, done: &mut usize) -> Result<()> {
        let end = end_of(bytes, offset)?;
        self.write_planned(offset..end, stamp, &mut |places| self.put(places, bytes, offset), done)
    }

    /// Writes whole blocks behind i_size, which stays. The caller has locked all bytes.
    pub(super) fn write_behind(self, bytes: &[u8], offset: u64) -> Result<()> {
        let end = end_of(bytes, offset)?;
        let (mut at, mut put) = (offset, |places: &[Placement]| self.put(places, bytes, offset));
        while at < end {
            at = self.fs().with_room(|| self.write_batch(batch_of(at..end), false, &mut put))?;
        }
        Ok(())
    }

    /// Writes placed parts of `bytes`, which begin at `start` of the file.
    fn put(self, places: &[Placement], bytes: &[u8], start: u64) -> Result<()> {
        let part = |at: u64| (at - start) as usize;
        let write = |place: &Placement| io::Write {
            offset: place.offset,
            head: place.head,
            body: &bytes[part(place.bytes.start)..part(place.bytes.end)],
            tail: place.tail,
        };
        io::write(self.fs(), &places.iter().map(write).collect::<Vec<_>>())
    }

    /// Writes past the page cache: writes out and drops the cached pages of these blocks.
    fn write_planned(
        self,
        bytes: Range<u64>,
        stamp: Stamp,
        write: &mut Write<'_>,
        done: &mut usize,
    ) -> Result<()> {
        let fs = self.fs();
        let Range { start, end } = bytes;
        self.zero_before(start)?;
        let touched = self.blocks(start, end)?;
        // Writes dirty pages out first: then the cache has nothing that the device lacks.
        self.write_back(touched.clone())?;
        self.file.drop_pages(touched.clone());
        let (mut at, mut began, mut has_failed) = (start, false, false);
        let mut write = |places: &[Placement]| {
            began = true;
            let written = write(places);
            has_failed = written.is_err();
            written
        };
        let mut ended = Ok(());
        while at < end && ended.is_ok() {
            match fs.with_room(|| self.write_batch(batch_of(at..end), true, &mut write)) {
                Ok(written) => at = written,
                Err(e) => ended = Err(e),
            }
        }
        // A plan that ended half way has mapped its first blocks and moved i_disksize: i_size
        // follows. Their bytes are on the device, unless the write itself failed: then the journal
        // ends before it commits the map.
        let mapped = self.file.disk_size().min(end);
        if ended.is_err() && !has_failed && mapped > self.file.size() {
            at = at.max(mapped);
        }
        // An error may have ended the loop, also behind the first write to the device.
        if began {
            if at > start {
                // Before the pages are dropped: readahead in between would cache zeros for bytes
                // that were still behind the end.
                self.file.extend(at);
            }
            self.file.drop_pages(touched);
            self.file.wrote(fs);
            self.touch(stamp);
            *done += (at - start) as usize;
            self.journal_each_write()?;
        }
        ended
    }

    /// Writes as many of `bytes` as one handle maps, at least one. Returns the end of them.
    fn write_batch(self, bytes: Range<u64>, moves_end: bool, write: &mut Write<'_>) -> Result<u64> {
        let fs = self.fs();
        let block_size = fs.block_size as usize;
        let mut plan = WritePlan::new(self);
        let (mut places, mut at) = (Vec::new(), bytes.start);
        while at < bytes.end {
            let (lblk, inner) = place(fs, at)?;
            // At most a batch.
            let left = (bytes.end - at) as usize;
            let piece = match plan.place(lblk, (inner + left).div_ceil(block_size) as u32) {
                Ok(Some(piece)) => piece,
                Ok(None) => break,
                Err(Error::NoSpace) if at > bytes.start => break,
                Err(e) => return Err(e),
            };
            let room = piece.blocks as usize * block_size - inner;
            let n = left.min(room);
            let (offset, bytes) = (fs.byte_of(piece.block), at..at + n as u64);
            places.push(match piece.fresh {
                // Newly allocated blocks are written whole.
                true => Placement { offset, head: inner, bytes, tail: room - n },
                false => Placement { offset: offset + inner as u64, head: 0, bytes, tail: 0 },
            });
            at += n as u64;
        }
        plan.carry_out(if moves_end { at } else { 0 }, || write(&places))?;
        Ok(at)
    }
}

/// Returns a range of bytes that lie in pieces.
fn parts<'b>(pieces: &[&'b [u8]], range: Range<usize>) -> Vec<&'b [u8]> {
    let mut start = 0;
    let part = |piece: &&'b [u8]| {
        let (from, to) = (range.start.saturating_sub(start), range.end.saturating_sub(start));
        start += piece.len();
        piece.get(from..to.min(piece.len())).filter(|part| !part.is_empty())
    };
    pieces.iter().filter_map(part).collect()
}

/// Returns as many of the bytes as are planned at a time.
fn batch_of(bytes: Range<u64>) -> Range<u64> {
    let len = (bytes.end - bytes.start).min(BATCH - bytes.start % BATCH);
    bytes.start..bytes.start + len
}
