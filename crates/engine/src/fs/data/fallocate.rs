//! fallocate: changes which blocks a file has (allocate, punch, zero, collapse, insert).
//!
//! Every mode that changes something locks the bytes from the first on to the end, writes out the
//! dirty ones, and then holds the writeback lock, so no dirty page loses its block. One handle
//! takes as many steps as the transaction has room for.
//!
//! Allocating, punching and zeroing go from the first block to the last in pieces of a bounded
//! number of runs, and let all locks go between two of them: threads that wait to read the file are
//! served there. Other calls may change the file there too; the last piece sets the new size.
//!
//! Invariants:
//! - A crash shows whole handles. Only a file of very many extents can be seen half shifted, with a
//!   hole at the place that the shift had reached.
//! - A call that fails between two pieces has done the pieces before, and has not moved i_size. The
//!   file is stamped for what a failed call has changed.
//!
//! Hazard: readahead locks no bytes, and may cache some by the old map. So every mode that changes
//! content drops cached pages before the map changes and again after.

use super::content::Content;
use super::plan::WritePlan;
use super::truncate::touch;
use super::{max_size, set_size};
use crate::error::{Error, Result};
use crate::fs::file::times::Stamp;
use crate::fs::inode::CachedInode;
use crate::store::alloc;
use crate::store::map::{self, ChangeBlocks, Mapping, Progress};
use crate::store::txn::{Txn, credits};
use lanefs_format::Inode;
use lanefs_format::extent::MAX_BLOCKS;
use std::cell::Cell;
use std::ops::{Deref, Range};

/// Runs and holes of a piece.
const PIECE: usize = 2048;

/// The operation of [`File::fallocate`](crate::File::fallocate) on a range of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FallocMode {
    /// Gives blocks to holes, which go on reading as zeros; the file grows to the end of the range.
    Allocate,
    /// Allocates as `Allocate` does, but the file does not grow: blocks behind its end are kept for
    /// later writes.
    KeepSize,
    /// Frees the blocks: the range reads as zeros. The file does not grow.
    PunchHole,
    /// Makes the range read as zeros and keeps its blocks, or gives it some; the file grows to its
    /// end.
    ZeroRange,
    /// Zeroes as `ZeroRange` does, but the file does not grow.
    ZeroRangeKeepSize,
    /// Removes the range: the bytes behind it move to its place. Whole blocks that end before the
    /// end of the file.
    CollapseRange,
    /// Inserts a hole: the bytes from there on move behind it. Whole blocks that begin before the
    /// end of the file.
    InsertRange,
    /// Does nothing: blocks of ext4 belong to one file only.
    UnshareRange,
}

impl Content<'_> {
    /// Carries out `mode` for `len` bytes from `offset` on.
    ///
    /// # Errors
    /// As [`File::fallocate`](crate::File::fallocate).
    pub(crate) fn fallocate(self, mode: FallocMode, offset: u64, len: u64) -> Result<()> {
        // With no lock held. Each mode may start again after it has found no space half way.
        self.fs().with_room(|| self.fallocate_once(mode, offset, len))
    }

    fn fallocate_once(self, mode: FallocMode, offset: u64, len: u64) -> Result<()> {
        self.fs().check_writable()?;
        if len == 0 {
            return Err(Error::Invalid("a range of no bytes"));
        }
        let end = offset.saturating_add(len);
        let mut at = offset;
        while let Some(next) = self.fallocate_piece(mode, at, end)? {
            at = next;
        }
        Ok(())
    }

    /// Carries out `mode` for the first piece of `offset..end`. Returns where the next one begins.
    pub(super) fn fallocate_piece(self, mode: FallocMode, offset: u64, end: u64) -> Result<Option<u64>> {
        let Self { node, file } = self;
        let fs = self.fs();
        let _held = self.lock_from(offset)?;
        check_flags(node, mode)?;
        file.check_growth(node.ino)?;
        if end > u64::from(MAX_BLOCKS) * u64::from(fs.block_size) {
            return Err(Error::FileTooBig);
        }
        if mode != FallocMode::PunchHole {
            map::check_size(fs, node.flags(), end)?;
        }
        if mode != FallocMode::PunchHole && !map::is_tree(&node.state()) {
            return Err(Error::NotSupported("only a file of extents can be changed so".into()));
        }
        let mut job = FallocRange { content: self, offset, end, changed: Cell::new(false) };
        let next = match mode {
            FallocMode::Allocate => job.allocate(end),
            FallocMode::KeepSize => job.allocate(0),
            FallocMode::PunchHole => job.punch(),
            FallocMode::ZeroRange => job.zero(end),
            FallocMode::ZeroRangeKeepSize => job.zero(0),
            FallocMode::CollapseRange => job.collapse().map(|()| None),
            FallocMode::InsertRange => job.insert().map(|()| None),
            FallocMode::UnshareRange => Ok(None),
        };
        if next.is_err() && job.changed.get() {
            self.touch(Stamp::Now);
        }
        Ok(next?.map(|lblk| u64::from(lblk) * u64::from(fs.block_size)))
    }
}

fn check_flags(node: &CachedInode, mode: FallocMode) -> Result<()> {
    node.check_change(matches!(mode, FallocMode::Allocate | FallocMode::KeepSize))?;
    node.check_no_verity()
}

/// A range of bytes of a file. The bytes from its start to the end are locked.
struct FallocRange<'n> {
    content: Content<'n>,
    offset: u64,
    end: u64,
    /// Whether the file has changed, and may not be stamped yet.
    changed: Cell<bool>,
}

/// A range belongs to a file.
impl<'n> Deref for FallocRange<'n> {
    type Target = Content<'n>;

    fn deref(&self) -> &Content<'n> {
        &self.content
    }
}

impl FallocRange<'_> {
    fn block_size(&self) -> u64 {
        self.fs().block_size.into()
    }

    /// Returns the blocks that hold any of the range.
    fn touched(&self) -> Range<u32> {
        // No range goes beyond the largest logical block.
        (self.offset / self.block_size()) as u32..self.end.div_ceil(self.block_size()) as u32
    }

    /// Returns the blocks that lie in the range whole.
    fn whole(&self) -> Range<u32> {
        let first = self.offset.div_ceil(self.block_size()) as u32;
        first..((self.end / self.block_size()) as u32).max(first)
    }

    /// Drops cached pages. Dirty ones were written out before, unless that failed.
    fn drop_pages(&self, blocks: Range<u32>) -> Result<()> {
        self.file.alloc.discard();
        let Some(pages) = self.file.pages_if_used() else { return Ok(()) };
        self.give_up(&pages.invalidate(blocks))
    }

    /// Gives blocks to the holes of a piece; behind the last one the file grows to `size`. Returns
    /// the first block of the next piece.
    fn allocate(&self, size: u64) -> Result<Option<u32>> {
        self.write_back(self.touched())?;
        let _alone = self.hold_writeback();
        self.file.alloc.discard();
        let next = self.fill_holes()?;
        match next {
            None => self.finish(size)?,
            // The next piece may fail.
            Some(_) => self.touch(Stamp::Now),
        }
        Ok(next)
    }

    /// Punches a piece. Returns the first block of the next one.
    fn punch(&mut self) -> Result<Option<u32>> {
        let size = self.file.size();
        if self.offset >= size {
            return self.finish(0).map(|()| None);
        }
        // As the kernel does: blocks preallocated behind the end stay, except in the page of the
        // end, which is freed whole.
        if self.end > size {
            let most = max_size(self.fs(), self.node.flags());
            self.end = size.next_multiple_of(self.block_size().max(4096)).min(most.max(size));
        }
        let mut blocks = {
            let most = map::max_blocks(self.fs(), self.node.flags());
            let whole = self.whole();
            whole.start.min(most)..whole.end.min(most)
        };
        self.write_back(self.touched())?;
        let next = Some(self.piece_of(&blocks)?).filter(|next| *next < blocks.end);
        if let Some(next) = next {
            blocks.end = next;
            self.end = u64::from(next) * self.block_size();
        }
        self.punch_blocks(blocks)?;
        Ok(next)
    }

    /// Returns the end of the first piece of `blocks`. No page of them is dirty, and none becomes
    /// so while their bytes are locked: the map stays.
    fn piece_of(&self, blocks: &Range<u32>) -> Result<u32> {
        let mut at = blocks.start;
        for _ in 0..PIECE {
            if at >= blocks.end {
                break;
            }
            at = at.saturating_add(self.map(at)?.len());
        }
        Ok(at.min(blocks.end))
    }

    /// Frees `blocks`, which are all that lie in the range whole.
    fn punch_blocks(&self, blocks: Range<u32>) -> Result<()> {
        let _alone = self.hold_writeback();
        self.drop_pages(blocks.clone())?;
        self.past_cache(|| {
            self.zero_edges()?;
            self.free(blocks)
        })?;
        self.finish(0)
    }

    /// Runs a change of content past the page cache, and then drops the range's pages, even if the
    /// change failed half way: later reads must see what was done.
    fn past_cache(&self, change: impl FnOnce() -> Result<()>) -> Result<()> {
        let changed = change();
        changed.and(self.drop_pages(self.touched()))
    }

    /// Makes a piece read as zeros; behind the last one the file grows to `size`. Returns the first
    /// block of the next piece.
    fn zero(&mut self, mut size: u64) -> Result<Option<u32>> {
        self.write_back(self.touched())?;
        let _alone = self.hold_writeback();
        let next = self.fill_holes()?;
        if let Some(next) = next {
            size = 0;
            self.end = u64::from(next) * self.block_size();
        }
        self.drop_pages(self.whole())?;
        self.past_cache(|| {
            self.zero_edges()?;
            self.mark_unwritten(self.whole())
        })?;
        self.finish(size)?;
        Ok(next)
    }

    /// Returns the blocks of a range, which must be whole blocks.
    fn aligned(&self) -> Result<Range<u32>> {
        match self.offset.is_multiple_of(self.block_size()) && self.end.is_multiple_of(self.block_size()) {
            true => Ok(self.touched()),
            false => Err(Error::Invalid("a range that is not whole blocks")),
        }
    }

    fn collapse(&self) -> Result<()> {
        let (blocks, size) = (self.aligned()?, self.file.size());
        if self.end >= size {
            return Err(Error::Invalid("a range to collapse that reaches the end of the file"));
        }
        self.write_back(blocks.start..u32::MAX)?;
        let _alone = self.hold_writeback();
        self.drop_pages(blocks.start..u32::MAX)?;
        let size = size - (self.end - self.offset);
        let by = blocks.end - blocks.start;
        // Only freeing takes space, and it may start again without harm.
        let (mut removed, mut from) = (false, blocks.end);
        let collapsed = self.in_handles(|txn, inode| {
            if !removed {
                let step = map::remove(txn, inode, blocks.clone())?;
                if !step.is_done() {
                    return Ok(step);
                }
            }
            removed = true;
            let step = map::shift_left(txn, inode, &mut from, by)?;
            if !step.is_done() {
                return Ok(step);
            }
            touch(self.fs(), inode);
            set_size(txn, inode, size)?;
            Ok(Progress::Done)
        });
        if collapsed.is_ok() {
            self.file.set_size(size);
        }
        // Even if it stopped half way: pages that were read ahead meanwhile follow the old map.
        self.drop_pages(blocks.start..u32::MAX)?;
        collapsed
    }

    fn insert(&self) -> Result<()> {
        let (blocks, size) = (self.aligned()?, self.file.size());
        if self.offset >= size {
            return Err(Error::Invalid("a place to insert at that is not before the end of the file"));
        }
        let size = size.saturating_add(self.end - self.offset);
        map::check_size(self.fs(), self.node.flags(), size)?;
        self.write_back(blocks.start..u32::MAX)?;
        let _alone = self.hold_writeback();
        self.drop_pages(blocks.start..u32::MAX)?;
        let by = blocks.end - blocks.start;
        // Only splitting the extent takes space, and it comes first.
        let (mut grown, mut end) = (false, MAX_BLOCKS);
        let inserted = self.in_handles(|txn, inode| {
            if !grown {
                map::part(txn, inode, blocks.start, by)?;
                touch(self.fs(), inode);
                // Before any block lies behind the old end.
                set_size(txn, inode, size)?;
                grown = true;
            }
            map::shift_right(txn, inode, blocks.start, &mut end, by)
        });
        // Even if it stopped half way, in a later handle than the one that set the size.
        if grown {
            self.file.set_size(self.node.state().size);
        }
        self.drop_pages(blocks.start..u32::MAX)?;
        inserted
    }

    /// Changes the map by `step`, in as many handles as that takes. The first split of an extent
    /// may take reserved blocks: a user frees space on a full volume too.
    fn in_handles(&self, mut step: impl FnMut(&mut Txn<'_>, &mut Inode) -> Result<Progress>) -> Result<()> {
        // A step may make the tree grow.
        let needed = || {
            let state = self.node.state();
            map::remove_credits(&state)
                + map::insert_credits(self.fs(), &state, 1)
                + credits::INODE
                + credits::SUPER
        };
        let nodes = map::split_blocks(&self.node.state());
        let prepared = self.node.prepare()?;
        self.fs().transact(needed(), |txn| {
            // Without a claim, a split takes the blocks that this thread's user may take.
            if let Ok(claim) = alloc::claim_for_map(self.fs(), nodes) {
                txn.spend(claim);
            }
            loop {
                let progress = prepared.update_map(txn, |txn, inode| {
                    let before = (Txn::mark(txn), inode.i_block);
                    let progress = step(txn, inode);
                    self.note_change((Txn::mark(txn), inode.i_block) != before);
                    progress
                })?;
                match progress {
                    Progress::Done => return Ok(()),
                    Progress::More => txn.restart(needed())?,
                    Progress::Stopped(e) => return txn.stop(e),
                }
            }
        })
    }

    /// Notes whether something has changed.
    fn note_change(&self, changed: bool) {
        self.changed.set(self.changed.get() || changed);
    }

    /// Stamps the file, and grows it to `size` if it is smaller.
    fn finish(&self, size: u64) -> Result<()> {
        let before = self.file.size();
        if size > before {
            self.node.zero_tail(before, size)?;
        }
        let prepared = self.node.prepare()?;
        self.fs().transact(credits::INODE + credits::SUPER, |txn| {
            prepared.update(txn, |txn, inode| {
                touch(self.fs(), inode);
                if size > inode.size { set_size(txn, inode, size) } else { Ok(()) }
            })
        })?;
        self.file.extend(size);
        Ok(())
    }

    /// Zeroes on the device the range's part of blocks that are only partly in it.
    fn zero_edges(&self) -> Result<()> {
        let size = self.block_size();
        let (head, tail) = (self.offset.next_multiple_of(size), self.end / size * size);
        self.node.zero_part(self.offset, self.end.min(head))?;
        self.note_change(self.offset < head);
        if tail >= head {
            self.node.zero_part(tail, self.end)?;
            self.note_change(tail < self.end);
        }
        self.file.wrote(self.fs());
        Ok(())
    }

    /// Maps the holes of the first blocks that the range touches to unwritten blocks. A range that
    /// cannot fit allocates nothing: programs ask for more than there is to see whether it fits.
    /// Returns where the next hole may be.
    fn fill_holes(&self) -> Result<Option<u32>> {
        let Range { start, end } = self.touched();
        let has = self.node.state().blocks / u64::from(self.fs().block_size / 512);
        if u64::from(end - start).saturating_sub(has) > alloc::to_come(self.fs()) {
            return Err(Error::NoSpace);
        }
        Ok(Some(self.fill_some(start..end)?).filter(|next| *next < end))
    }

    /// Fills as many holes of a piece as one handle can. Returns where the next one may be.
    fn fill_some(&self, blocks: Range<u32>) -> Result<u32> {
        let (mut plan, mut at) = (WritePlan::new(self.content), blocks.start);
        for _ in 0..PIECE {
            if at >= blocks.end {
                break;
            }
            let mapping = self.map(at)?;
            let len = mapping.len().min(blocks.end - at);
            at += match mapping {
                Mapping::Mapped { .. } => len,
                Mapping::Hole { .. } => match plan.place(at, len) {
                    Ok(Some(piece)) => piece.blocks,
                    Ok(None) => break,
                    Err(Error::NoSpace) if !plan.is_empty() => break,
                    Err(e) => return Err(e),
                },
            };
        }
        if !plan.is_empty() {
            let before = self.node.state().blocks;
            let allocated = plan.allocate();
            // A part of the plan, if not all.
            self.note_change(self.node.state().blocks != before);
            allocated?;
        }
        Ok(at)
    }

    /// Makes `blocks` a hole.
    fn free(&self, blocks: Range<u32>) -> Result<()> {
        if blocks.is_empty() {
            return Ok(());
        }
        self.in_handles(|txn, inode| map::remove(txn, inode, blocks.clone()))
    }

    /// Marks the mapped blocks of `blocks` as unwritten.
    fn mark_unwritten(&self, blocks: Range<u32>) -> Result<()> {
        let Range { mut start, end } = blocks;
        if start == end {
            return Ok(());
        }
        self.in_handles(|txn, inode| {
            while start < end {
                let mapping = match map::lookup(self.fs(), inode, start) {
                    Ok(mapping) => mapping,
                    Err(e) => return Ok(Progress::Stopped(e)),
                };
                let next = start + mapping.len().min(end - start);
                if matches!(mapping, Mapping::Mapped { unwritten: false, .. }) {
                    if !txn.room(map::insert_credits(self.fs(), inode, 1) + credits::INODE)? {
                        return Ok(Progress::More);
                    }
                    let mark = Txn::mark(txn);
                    match map::convert(txn, inode, start..next, true) {
                        Ok(()) => {}
                        Err(e) if Txn::mark(txn) == mark => return Ok(Progress::Stopped(e)),
                        Err(e) => return Err(e),
                    }
                }
                start = next;
            }
            Ok(Progress::Done)
        })
    }
}
