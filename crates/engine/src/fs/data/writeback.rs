//! Writeback: writes the dirty pages of a file to the device.
//!
//! A file has one writeback at a time. It holds the file's writeback lock and no lock of its bytes:
//! writers go on, and copy a page that is being written before they change it. A thread that moves
//! blocks holds the writeback lock. Writeback allocates blocks for holes, in order of position.
//!
//! Invariant: i_disksize moves past bytes only when they are on the device.
//! - i_size is read *before* dirty pages are taken. A writer moves i_size after it has copied its
//!   bytes, so the pages then hold all bytes before it. i_disksize moves that far and no further,
//!   and no block behind it is taken. If i_size moves inside its last block before that block is
//!   taken, the block stays dirty.
//! - Pages are written in order of position, from i_disksize on. A range behind i_disksize is
//!   extended to begin there.

use super::FileData;
use super::Pieces;
use super::cache::{Background, FileCache, Item, Pressure, Writeback};
use super::plan::Plan;
use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::fs::inode::Node;
use lanefs_device::release_free_memory;
use lanefs_sync::time::Instant;
use std::mem;
use std::ops::Range;
use std::time::Duration;

/// Bytes of a file that are taken at a time.
const BATCH: u64 = 8 << 20;

/// How long the writer of a stream waits for the flusher, which may be busy with other files, or
/// fail.
const PACE: Duration = Duration::from_millis(50);

/// How long nothing must be used before the volume is idle.
const REST: Duration = Duration::from_secs(5);

/// All blocks of a file.
pub(super) const ALL: Range<u32> = 0..u32::MAX;

/// Writes out the dirty blocks of `blocks`. If they lie behind i_disksize, also writes out the
/// dirty blocks between.
///
/// # Errors
/// The device's or the journal's: the pages stay dirty.
pub(crate) fn write_back(node: &Node, blocks: Range<u32>) -> Result<()> {
    let Some((file, pages)) = dirty_pages(node) else { return Ok(()) };
    let _alone = file.hold_writeback(node);
    let first = disk_block(node, file);
    let blocks = if blocks.end > first { blocks.start.min(first)..blocks.end } else { blocks };
    while write_some(node, file, pages, blocks.clone(), BATCH, false)? {}
    Ok(())
}

/// Writes out the dirty blocks between i_disksize and byte `end`, so that i_disksize may be set to
/// `end`. The caller keeps i_size from changing.
///
/// # Errors
/// As [`write_back`].
pub(super) fn write_back_to(node: &Node, file: &FileData, end: u64) -> Result<()> {
    if end <= file.disk_size() {
        return Ok(());
    }
    let last = u32::try_from(end.div_ceil(node.fs.block_size.into())).unwrap_or(u32::MAX);
    write_back(node, disk_block(node, file)..last)
}

/// The block that holds the byte at i_disksize.
fn disk_block(node: &Node, file: &FileData) -> u32 {
    u32::try_from(file.disk_size() / u64::from(node.fs.block_size)).unwrap_or(u32::MAX)
}

/// Writes out all dirty blocks, for a caller that waits for the commit next: it may be done on
/// return.
pub(super) fn write_back_synced(node: &Node) -> Result<()> {
    let Some((file, pages)) = dirty_pages(node) else { return Ok(()) };
    let _alone = file.hold_writeback(node);
    while write_some(node, file, pages, ALL, BATCH, true)? {}
    Ok(())
}

fn dirty_pages(node: &Node) -> Option<(&FileData, &FileCache)> {
    let file = node.file_if_used()?;
    Some((file, file.pages_if_used()?))
}

/// Writes out up to `max` bytes of dirty blocks; `false` if none is dirty. `synced`: the caller
/// waits for the commit next.
fn write_some(
    node: &Node,
    file: &FileData,
    pages: &FileCache,
    blocks: Range<u32>,
    max: u64,
    synced: bool,
) -> Result<bool> {
    // Before the pages are taken: see the head of the file.
    let size = file.size();
    let last = u32::try_from(size.div_ceil(node.fs.block_size.into())).unwrap_or(u32::MAX);
    let blocks = blocks.start..blocks.end.min(last);
    let Some(taken) = pages.take_dirty(blocks, max) else { return Ok(false) };
    let again = has_grown_within_block(node, file, size).then(|| last.saturating_sub(1));
    let _timer = node.fs.counters.writeback.start();
    if let Err(e) = write_taken(node, file, &taken, size, synced) {
        taken.failed();
        return Err(e);
    }
    taken.done(again);
    Ok(true)
}

/// Whether i_size has moved on from `size` inside a block. That block was taken later and may hold
/// bytes behind `size`, which the inode's new size does not include. So it must stay dirty, or no
/// later sync would include them.
fn has_grown_within_block(node: &Node, file: &FileData, size: u64) -> bool {
    !size.is_multiple_of(node.fs.block_size.into()) && file.size() > size
}

/// Writes out pages that were taken when i_size was `size`. On failure, the plan gives the claim
/// for pages that are not mapped back to the file.
fn write_taken(node: &Node, file: &FileData, taken: &Writeback, size: u64, synced: bool) -> Result<()> {
    let mut batch = Batch::new(file);
    for run in taken.runs() {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
        let mut lblk = first.lblk;
        while lblk < last.end() {
            lblk = batch.add(node, file, run, lblk)?;
            if lblk < last.end() {
                // The handle of this batch is full.
                mem::replace(&mut batch, Batch::new(file)).submit(node, file, size)?;
            }
        }
    }
    if synced {
        batch.plan.sync();
    }
    batch.submit(node, file, size)
}

struct Batch<'f> {
    plan: Plan<'f>,
    writes: Pieces,
    /// The end of the bytes that are written, in the file.
    end: u64,
}

impl<'f> Batch<'f> {
    fn new(file: &'f FileData) -> Self {
        Self { plan: Plan::of_pages(file), writes: Vec::new(), end: 0 }
    }

    /// Finds blocks for a contiguous run from `lblk` on. Returns the block where the batch was
    /// full, or the end.
    fn add(&mut self, node: &Node, file: &FileData, run: &[Item], mut lblk: u32) -> Result<u32> {
        let fs = &*node.fs;
        let block_size = fs.block_size as usize;
        let Some(last) = run.last() else { return Ok(lblk) };
        let start = lblk;
        let mut items = run.iter().skip_while(|item| item.end() <= start).peekable();
        // The first item may have been written in part by the batch before.
        let mut begun = items.peek().map_or(0, |item| (lblk - item.lblk) as usize * block_size);
        while lblk < last.end() {
            let Some(piece) = self.plan.place(node, file, lblk, last.end() - lblk)? else { break };
            let (mut bytes, mut need) = (Vec::new(), piece.blocks as usize * block_size);
            while let Some(item) = items.peek().filter(|_| need > 0) {
                let part = item.part(begun, need);
                (begun, need) = (begun + part.len(), need - part.len());
                if begun == item.len() {
                    items.next();
                    begun = 0;
                }
                bytes.push(part);
            }
            self.writes.push((fs.byte_of(piece.block), bytes));
            lblk += piece.blocks;
        }
        self.end = self.end.max(u64::from(lblk) * block_size as u64);
        Ok(lblk)
    }

    fn submit(self, node: &Node, file: &FileData, size: u64) -> Result<()> {
        let Self { plan, writes, end } = self;
        let bytes = writes.iter().flat_map(|(_, pieces)| pieces).map(|piece| piece.len() as u64).sum();
        node.fs.counters.bytes_written_back.add(bytes);
        plan.carry_out_pages(node, file, end.min(size), writes)
    }
}

impl Fs {
    /// Writes out all pages of the volume that are dirty now.
    ///
    /// # Errors
    /// That of the first file that failed. All other files are written out, and a sync through each
    /// open handle of a failed file reports the failure too.
    pub(crate) fn write_back_all(&self) -> Result<()> {
        let mut first = Ok(());
        for pages in self.pages.dirty_files() {
            if let Some(node) = self.known_node(pages.ino()) {
                first = first.and(self.write_back_noted(&node));
            }
        }
        first
    }

    /// Writes out a file outside of a call on it. A sync through each open handle of the file
    /// reports a failure.
    fn write_back_noted(&self, node: &Node) -> Result<()> {
        write_back(node, ALL).inspect_err(|e| self.note_lost(node, e))
    }

    /// Runs the background tasks: writes out pages that are old or too many, writes pending times,
    /// evicts inodes that are not in use. Returns how long to sleep; `None`: until there is
    /// something dirty.
    pub(crate) fn background_round(&self, jobs: &mut Background) -> Option<Duration> {
        while let Some(job) =
            jobs.next(&self.pages, Instant::now()).filter(|_| !self.flusher.is_wanted_back())
        {
            let Some(node) = self.known_node(job.file.ino()) else { break };
            let Some((file, pages)) = dirty_pages(&node) else { break };
            let _alone = file.hold_writeback(&node);
            if let Err(e) = write_some(&node, file, pages, job.blocks, job.max, false) {
                self.note_lost(&node, &e);
                break;
            }
            pages.give_pages_behind();
        }
        if self.times_are_due() {
            // If this fails, the next sync reports the journal's error.
            let _ = self.write_all_times();
        }
        self.nodes.sweep();
        self.pages.leave_to_others(self.journal.memory());
        if self.writes_by_age() && (self.pages.dirty_bytes() > 0 || self.dirty_times() > 0) {
            return Some(jobs.pause(&self.pages, Instant::now()).min(Duration::from_secs(1)));
        }
        if self.options.release_memory {
            self.pages.empty();
        }
        self.rest()
    }

    /// Returns whether dirty pages are written out at a certain age. Without a commit timer they
    /// stay until a sync, or until a writer is under pressure. After a failure of the journal they
    /// are never written.
    fn writes_by_age(&self) -> bool {
        !self.options.commit_interval.is_zero() && !self.journal.has_ended()
    }

    /// Once nothing was used for [`REST`]: writes committed blocks home, and gives memory back if
    /// the options ask for it. Returns after what time to look again; `None`: after the next use.
    fn rest(&self) -> Option<Duration> {
        let commits = self.writes_by_age();
        if self.journal.take_used() || commits && self.journal.has_uncommitted() {
            return Some(REST);
        }
        if commits {
            // If this fails, the next sync reports the journal's error.
            let _ = self.journal.checkpoint_oldest(u32::MAX);
        }
        if self.options.release_memory {
            self.nodes.sweep_all();
            self.pages.empty();
            self.journal.release();
            release_free_memory();
        }
        None
    }

    /// Slows a writer down that makes pages dirty faster than they can be written.
    pub(crate) fn throttle(&self, node: &Node) -> Result<()> {
        let pressure = self.pages.pressure();
        if pressure > Pressure::Calm || self.pages.has_streams() {
            self.flusher.wake();
        }
        if pressure <= Pressure::Background {
            return self.pace(node);
        }
        let _timer = self.counters.throttle.start();
        if let Some((file, pages)) = dirty_pages(node) {
            let _alone = file.hold_writeback(node);
            write_some(node, file, pages, ALL, BATCH, false)?;
        }
        // Most dirty pages belong to other files: writes those out too before this writer goes on.
        // It gets no error of another file.
        while self.pages.pressure() == Pressure::Stop {
            let files = self.pages.dirty_files().into_iter();
            let mut nodes = files.filter_map(|pages| self.known_node(pages.ino()));
            if !nodes.any(|node| self.write_back_noted(&node).is_ok()) {
                break;
            }
        }
        Ok(())
    }

    /// Keeps the writer of a stream from getting far ahead of the device.
    fn pace(&self, node: &Node) -> Result<()> {
        let Some((file, pages)) = dirty_pages(node).filter(|(_, pages)| pages.is_ahead()) else {
            return Ok(());
        };
        let _timer = self.counters.throttle.start();
        // The flusher takes the next piece when its last one is on the device. This thread does not
        // wait for that write: it goes on copying meanwhile.
        if pages.wait_while_ahead(PACE) {
            return Ok(());
        }
        let _alone = file.hold_writeback(node);
        if pages.is_ahead() {
            write_some(node, file, pages, ALL, BATCH, false)?;
            pages.give_pages_behind();
        }
        Ok(())
    }

    /// Notes that data of the file could not be written: its next sync reports that.
    fn note_lost(&self, node: &Node, e: &Error) {
        if let Some(file) = node.file_if_used() {
            file.note_failure();
        }
        self.note_error(e);
    }
}
