//! Writeback: writes the dirty pages of a file to the device, and slows down writers that are ahead
//! of it.
//!
//! A file has one writeback at a time. It holds the file's writeback lock and no lock of its bytes:
//! writers go on, and copy a page that is being written before they change it. Writeback allocates
//! blocks for holes, in order of position. A thread that moves blocks holds the writeback lock.
//!
//! Invariant: i_disksize moves past bytes only when they are on the device.
//! - i_size is read *before* dirty pages are taken. A writer moves i_size after it has copied its
//!   bytes, so the pages hold all bytes before that i_size. i_disksize moves that far and no
//!   further, and no block behind it is taken. If i_size moves inside its last block before that
//!   block is taken, the block stays dirty.
//! - Pages are written in order of position, from i_disksize on. A range behind i_disksize is
//!   extended to begin there.

use super::Pieces;
use super::content::Content;
use super::plan::WritePlan;
use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::fs::file::cache::{Background, FileCache, Item, Pressure, WriteOutJob, WritebackBatch};
use crate::fs::inode::CachedInode;
use crate::store::{alloc, threads};
use lanefs_device::{BlockDevice, release_free_memory};
use lanefs_sync::Mutex;
use lanefs_sync::time::Instant;
use std::collections::BTreeSet;
use std::mem;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a file that are taken at a time.
const BATCH: u64 = 8 << 20;

/// How long the writer of a stream waits for the flusher, which may be busy with other files, or
/// fail.
const PACE: Duration = Duration::from_millis(50);

/// How long nothing must be used before the volume is idle.
const REST: Duration = Duration::from_secs(5);

/// Files that are written out at a time where each write waits for the network.
const REMOTE_WRITERS: usize = 32;

/// All blocks of a file.
pub(super) const ALL: Range<u32> = 0..u32::MAX;

impl Content<'_> {
    /// Writes out the blocks of `blocks` that are dirty when it begins. If they lie behind
    /// i_disksize, also writes out the dirty blocks between.
    ///
    /// # Errors
    /// The device's or the journal's: the pages stay dirty.
    pub(crate) fn write_back(self, blocks: Range<u32>) -> Result<()> {
        let Some(pages) = self.file.pages_if_used() else { return Ok(()) };
        let _alone = self.hold_writeback();
        let first = self.disk_block();
        let blocks = if blocks.end > first { blocks.start.min(first)..blocks.end } else { blocks };
        self.write_once(pages, blocks, false)
    }

    /// Writes out the dirty blocks between i_disksize and byte `end`, so that i_disksize may be set
    /// to
    /// `end`. The caller keeps i_size from changing.
    ///
    /// # Errors
    /// As [`write_back`](Self::write_back).
    pub(super) fn write_back_to(self, end: u64) -> Result<()> {
        if end <= self.file.disk_size() {
            return Ok(());
        }
        self.write_back(self.disk_block()..self.blocks_to(end))
    }

    /// Returns the block that holds the byte at i_disksize.
    fn disk_block(self) -> u32 {
        u32::try_from(self.file.disk_size() / u64::from(self.fs().block_size)).unwrap_or(u32::MAX)
    }

    /// Writes out all blocks that are dirty when it begins, for a caller that waits for the commit
    /// next: it may be done on return.
    pub(super) fn write_back_synced(self) -> Result<()> {
        let Some(pages) = self.file.pages_if_used() else { return Ok(()) };
        let _alone = self.hold_writeback();
        self.write_once(pages, ALL, true)
    }

    /// Writes out the dirty blocks of `blocks` up to the end of the file as it is now, each once:
    /// threads that go on writing do not keep it from ending.
    fn write_once(self, pages: &FileCache, blocks: Range<u32>, synced: bool) -> Result<()> {
        let mut left = blocks.start..blocks.end.min(self.blocks_to(self.file.size()));
        while let Some(end) = self.write_some(pages, left.clone(), BATCH, synced)? {
            left.start = end;
        }
        Ok(())
    }

    /// Writes out up to `max` bytes of dirty blocks. Returns the end of the last one; `None` if
    /// none is dirty. `synced`: the caller waits for the commit next.
    fn write_some(
        self,
        pages: &FileCache,
        blocks: Range<u32>,
        max: u64,
        synced: bool,
    ) -> Result<Option<u32>> {
        // Before the pages are taken: see the head of the file.
        let size = self.file.size();
        let last = self.blocks_to(size);
        let blocks = blocks.start..blocks.end.min(last);
        let Some(taken) = pages.take_dirty(blocks, max) else { return Ok(None) };
        let end = taken.end();
        let again = self.has_grown_within_block(size).then(|| last.saturating_sub(1));
        let _timer = self.fs().counters.writeback.start();
        if let Err(e) = self.write_taken(&taken, size, synced) {
            taken.failed();
            return Err(e);
        }
        taken.done(again);
        Ok(Some(end))
    }

    /// Returns whether i_size has moved on from `size` inside a block. That block was taken later
    /// and may hold bytes behind `size`, which the inode's new size does not include. So it must
    /// stay dirty, or no later sync would include them.
    fn has_grown_within_block(self, size: u64) -> bool {
        !size.is_multiple_of(self.fs().block_size.into()) && self.file.size() > size
    }

    /// Writes out pages that were taken when i_size was `size`. On failure, the plan gives the
    /// claim for pages that are not mapped back to the file.
    fn write_taken(self, taken: &WritebackBatch, size: u64, synced: bool) -> Result<()> {
        let mut batch = Batch::new(self);
        for run in taken.runs() {
            let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
            let mut lblk = first.lblk;
            while lblk < last.end() {
                lblk = batch.add(run, lblk)?;
                if lblk < last.end() {
                    // The handle of this batch is full.
                    mem::replace(&mut batch, Batch::new(self)).submit(size)?;
                }
            }
        }
        if synced {
            batch.plan.sync();
        }
        batch.submit(size)
    }
}

struct Batch<'f> {
    plan: WritePlan<'f>,
    writes: Pieces,
    /// The end of the bytes that are written, in the file.
    end: u64,
}

impl<'f> Batch<'f> {
    fn new(content: Content<'f>) -> Self {
        Self { plan: WritePlan::of_pages(content), writes: Vec::new(), end: 0 }
    }

    /// Finds blocks for a contiguous run from `lblk` on. Returns the block where the batch was
    /// full, or the end.
    fn add(&mut self, run: &[Item], mut lblk: u32) -> Result<u32> {
        let fs = self.plan.content().fs();
        let block_size = fs.block_size as usize;
        let Some(last) = run.last() else { return Ok(lblk) };
        let start = lblk;
        let mut items = run.iter().skip_while(|item| item.end() <= start).peekable();
        // The first item may have been written in part by the batch before.
        let mut begun = items.peek().map_or(0, |item| (lblk - item.lblk) as usize * block_size);
        while lblk < last.end() {
            let Some(piece) = self.plan.place(lblk, last.end() - lblk)? else { break };
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

    fn submit(self, size: u64) -> Result<()> {
        let Self { plan, writes, end } = self;
        let bytes = writes.iter().flat_map(|(_, pieces)| pieces).map(|piece| piece.len() as u64).sum();
        plan.content().fs().counters.bytes_written_back.add(bytes);
        plan.carry_out_pages(end.min(size), writes)
    }
}

impl Fs {
    /// Writes out all pages of the volume that are dirty now: one file after the other, so that the
    /// same files get the same blocks each time.
    ///
    /// # Errors
    /// That of one file that failed. All other files are written out, and a sync through each open
    /// handle of a failed file reports the failure too.
    pub(crate) fn write_back_all(&self) -> Result<()> {
        self.write_back_files(&Mutex::new(self.pages.dirty_files().into_iter()))
    }

    /// Writes out all pages as [`write_back_all`](Self::write_back_all) does, but to a remote
    /// device several files at a time: each would wait for the network on its own.
    ///
    /// # Errors
    /// The errors of [`write_back_all`](Self::write_back_all).
    pub(crate) fn write_back_together(&self) -> Result<()> {
        let files = self.pages.dirty_files();
        let writers = if self.device.is_remote() { files.len().min(REMOTE_WRITERS) } else { 1 };
        let (files, keeps) = (Mutex::new(files.into_iter()), alloc::keeps_reserved());
        threads::together(writers, "lanefs-write", || {
            alloc::keeping_reserved(keeps, || self.write_back_files(&files))
        })
    }

    /// Writes out all files for a writer that must stop, unless another one does so already: then
    /// waits for it. Returns whether fewer pages are dirty.
    fn clear_together(&self) -> bool {
        let before = self.pages.dirty_bytes();
        let _alone = self.clearing.lock();
        if self.pages.pressure() == Pressure::Stop {
            // A sync through a handle of a file that failed reports that.
            let _ = self.write_back_together();
        }
        self.pages.dirty_bytes() < before
    }

    /// Writes out the files that no other thread has taken.
    fn write_back_files(&self, files: &Mutex<impl Iterator<Item = Arc<FileCache>>>) -> Result<()> {
        let mut first = Ok(());
        loop {
            let next = files.lock().next();
            let Some(pages) = next else { return first };
            if let Some(node) = self.known_inode(pages.ino()) {
                first = first.and(write_back_noted(&node));
            }
        }
    }

    /// Runs the background tasks: writes out pages that are old or too many, writes pending times,
    /// evicts inodes that are not in use. Returns how long to sleep; `None`: until there is
    /// something dirty.
    pub(crate) fn background_round(&self, jobs: &mut Background) -> Option<Duration> {
        // The files that failed since one was written out. When the turn of one comes again, the
        // round ends.
        let mut failed = BTreeSet::new();
        while let Some(job) =
            jobs.next(&self.pages, Instant::now()).filter(|_| !self.flusher.is_wanted_back())
        {
            let ino = job.file.ino();
            match self.write_job(&job) {
                true => failed.clear(),
                false if !failed.insert(ino) => break,
                false => {}
            }
        }
        if self.times_are_due() {
            // If this fails, the next sync reports the journal's error.
            let _ = self.write_all_times();
        }
        self.inodes.sweep();
        self.pages.leave_to_others(self.journal.memory());
        if self.writes_by_age() && (self.pages.dirty_bytes() > 0 || self.dirty_times() > 0) {
            return Some(jobs.pause(&self.pages, Instant::now()).min(Duration::from_secs(1)));
        }
        if self.options.release_memory {
            self.pages.empty();
        }
        self.rest()
    }

    /// Writes out a part of a file in the background. Returns whether it was: not if the file's
    /// inode is being deleted, or if the write fails, which a sync of the file reports.
    fn write_job(&self, job: &WriteOutJob) -> bool {
        let node = self.known_inode(job.file.ino());
        let Some(content) = node.as_ref().and_then(|node| node.content_if_used()) else { return false };
        let Some(pages) = content.file.pages_if_used() else { return false };
        let _alone = content.hold_writeback();
        let written = content.write_some(pages, job.blocks.clone(), job.max, false);
        match &written {
            Ok(_) => pages.give_pages_behind(),
            Err(e) => content.note_lost(e),
        }
        written.is_ok()
    }

    /// Returns whether dirty pages are written out at a certain age. Without a commit timer they
    /// stay until a sync, or until a writer is under pressure. After a failure of the journal they
    /// are never written.
    fn writes_by_age(&self) -> bool {
        !self.options.commit_interval.is_zero() && !self.journal.has_ended()
    }

    /// Checkpoints all committed blocks after [`REST`] without any use, and frees memory if
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
            self.inodes.sweep_all();
            self.pages.empty();
            self.journal.release();
            release_free_memory();
        }
        None
    }
}

/// Writes out a file outside of a call on it. A sync through each open handle of the file reports a
/// failure.
fn write_back_noted(node: &CachedInode) -> Result<()> {
    let Some(content) = node.content_if_used() else { return Ok(()) };
    content.write_back(ALL).inspect_err(|e| content.note_lost(e))
}

impl Content<'_> {
    /// Slows a writer down that makes pages dirty faster than they can be written.
    pub(super) fn throttle(self) -> Result<()> {
        let fs = self.fs();
        let pressure = fs.pages.pressure();
        if pressure > Pressure::Calm || fs.pages.has_streams() {
            fs.flusher.wake();
        }
        if pressure <= Pressure::Background {
            return self.pace();
        }
        let _timer = fs.counters.throttle.start();
        if let Some(pages) = self.file.pages_if_used() {
            let _alone = self.hold_writeback();
            self.write_some(pages, ALL, BATCH, false)?;
        }
        // Most dirty pages belong to other files: writes those out too before this writer goes on.
        // It gets no error of another file.
        while fs.pages.pressure() == Pressure::Stop {
            if fs.device.is_remote() {
                if fs.clear_together() {
                    continue;
                }
                break;
            }
            let files = fs.pages.dirty_files().into_iter();
            let mut nodes = files.filter_map(|pages| fs.known_inode(pages.ino()));
            if !nodes.any(|node| write_back_noted(&node).is_ok()) {
                break;
            }
        }
        Ok(())
    }

    /// Keeps the writer of a stream from getting far ahead of the device.
    fn pace(self) -> Result<()> {
        let Some(pages) = self.file.pages_if_used().filter(|pages| pages.is_ahead()) else {
            return Ok(());
        };
        let _timer = self.fs().counters.throttle.start();
        // The flusher takes the next piece when its last one is on the device. This thread does not
        // wait for that write: it goes on copying meanwhile.
        if pages.wait_while_ahead(PACE) {
            return Ok(());
        }
        let _alone = self.hold_writeback();
        if pages.is_ahead() {
            self.write_some(pages, ALL, BATCH, false)?;
            pages.give_pages_behind();
        }
        Ok(())
    }

    /// Notes that data of the file could not be written: its next sync reports that.
    fn note_lost(self, e: &Error) {
        self.file.note_failure();
        self.fs().note_error(e);
    }
}
