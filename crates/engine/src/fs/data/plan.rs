//! A plan: the changes of one handle to a file's map, before or after the data is written.
//!
//! A plan finds the blocks of a range: mapped ones in the map, and new ones, reserved in core, for
//! its holes. Then its data is written and its handle maps the new ones, in the order of the
//! volume's mode ([`WritebackMode`]). The thread that plans holds the lock of the range, or the
//! file's writeback lock, so no other thread maps the range meanwhile.

use super::content::Content;
use super::{Pieces, max_size, set_size};
use crate::error::{Error, Result};
use crate::fs::file::delayed::join;
use crate::fs::inode::CachedInode;
use crate::fs::{Fs, Overwrite, WritebackMode};
use crate::store::alloc::{self, Reserved, Spot};
use crate::store::io;
use crate::store::map::{self, Mapping};
use crate::store::space::Claim;
use crate::store::txn::{Txn, credits};
use lanefs_format::{Inode, InodeFlags};
use lanefs_journal::{CommitData, JournalError, Pending};
use std::mem;
use std::ops::Range;

/// Blocks of the volume for blocks of a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlannedRun {
    /// The first block.
    pub(super) block: u64,
    /// How many.
    pub(super) blocks: u32,
    /// Newly allocated: to be written whole.
    pub(super) fresh: bool,
}

#[derive(Debug)]
enum Change {
    Insert(u32, Reserved),
    Convert(Range<u32>),
}

/// The changes of one handle. A plan for dirty pages takes their claims from the file. Dropping it
/// gives the claims of pages that it has not mapped back to the file: those pages stay dirty.
#[derive(Debug)]
pub(super) struct WritePlan<'f> {
    content: Content<'f>,
    changes: Vec<Change>,
    credits: u32,
    /// Blocks claimed for the map, so that data does not take the last one.
    claim: Option<Claim>,
    /// Blocks of dirty pages that it has taken claims for.
    blocks: u64,
    /// Unwritten blocks that it will mark as written.
    converted: u64,
    /// It is for dirty pages: their claims are spent.
    of_pages: bool,
    /// The caller waits for the commit, if the plan's handle is shared with other files.
    synced: bool,
    /// Pages that the leader of the shared handle writes.
    pages: Pieces,
}

impl Drop for WritePlan<'_> {
    fn drop(&mut self) {
        if !self.of_pages {
            return;
        }
        let mut delayed = self.content.file.delayed();
        for change in mem::take(&mut self.changes) {
            match change {
                Change::Insert(lblk, run) => delayed.give_back(lblk, run),
                Change::Convert(range) => delayed.unwritten_again(range.len() as u64),
            }
        }
        delayed.put_back(self.claim.take());
    }
}

impl<'f> WritePlan<'f> {
    /// Makes an empty plan for a file.
    pub(super) fn new(content: Content<'f>) -> Self {
        Self {
            content,
            changes: Vec::new(),
            credits: 0,
            claim: None,
            blocks: 0,
            converted: 0,
            of_pages: false,
            synced: false,
            pages: Pieces::new(),
        }
    }

    /// Makes an empty plan for dirty pages of a file.
    pub(super) fn of_pages(content: Content<'f>) -> Self {
        let mut plan = Self::new(content);
        plan.of_pages = true;
        plan
    }

    /// Returns the file that it is for.
    pub(super) fn content(&self) -> Content<'f> {
        self.content
    }

    /// Makes [`carry_out_pages`](Self::carry_out_pages) wait for the commit too, if that costs no
    /// sleep of its own.
    pub(super) fn sync(&mut self) {
        self.synced = true;
    }

    /// Finds blocks for `lblk` and up to `blocks` logical blocks; `None` if the handle can take no
    /// more.
    ///
    /// # Errors
    /// [`Error::NoSpace`]: the plan so far stays valid.
    pub(super) fn place(&mut self, lblk: u32, blocks: u32) -> Result<Option<PlannedRun>> {
        let Content { node, .. } = self.content;
        let fs = self.content.fs();
        let state = node.state();
        let mapping = map::lookup(fs, &state, lblk)?;
        let len = mapping.len().min(blocks);
        if let Mapping::Mapped { block, unwritten: false, .. } = mapping {
            return Ok(Some(PlannedRun { block, blocks: len, fresh: false }));
        }
        let Some(len) = self.fit(&state, len.min(map::max_run(fs, &state))) else { return Ok(None) };
        let (block, blocks, change) = match mapping {
            Mapping::Mapped { block, .. } => {
                self.claim_parting(&state, lblk, len)?;
                (block, len, Change::Convert(lblk..lblk + len))
            }
            Mapping::Hole { before, len: hole } => {
                let spot = spot(self.content, &state, lblk, len, lblk - before..lblk.saturating_add(hole));
                let run = match self.of_pages {
                    true => self.spend(&state, spot)?,
                    false => self.reserve(&state, spot)?,
                };
                (run.start(), run.len(), Change::Insert(lblk, run))
            }
        };
        self.credits += cost(fs, &state, blocks);
        self.changes.push(change);
        Ok(Some(PlannedRun { block, blocks, fresh: true }))
    }

    /// Returns how many of `len` blocks the handle has credits for. A plan takes half of a
    /// transaction at most: other threads need credits too.
    fn fit(&self, inode: &Inode, mut len: u32) -> Option<u32> {
        let fs = self.content.fs();
        let most = fs.journal.max_credits() / 2;
        while self.credits + cost(fs, inode, len) > most {
            if len == 1 {
                // The first change is tried in any case.
                return self.changes.is_empty().then_some(1);
            }
            len = len.div_ceil(2);
        }
        Some(len)
    }

    /// Reserves as many blocks as leave enough for the map, and claims blocks for the map. On a
    /// nearly full volume the upper bound for the map may be too large: then the tree itself is
    /// examined.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; a damaged map. The plan so far stays valid.
    fn reserve(&mut self, inode: &Inode, mut spot: Spot) -> Result<Reserved> {
        let fs = self.content.fs();
        loop {
            let run = alloc::reserve_at(fs, &self.content.file.alloc, &spot, None)?;
            let (lblk, len, before) = (spot.lblk, run.len(), self.changes.len());
            let need = map::insert_blocks(fs, inode, lblk, len, before)?;
            match self.claim_nodes(inode, need) {
                Ok(()) => return Ok(run),
                Err(Error::NoSpace) if len > 1 => spot.want = len.saturating_sub(need as u32).max(1),
                Err(Error::NoSpace) => {
                    let need = map::insert_blocks_now(fs, inode, lblk, len, before)?;
                    return self.claim_nodes(inode, need).map(|()| run);
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// Claims `need` blocks for new nodes of the map.
    ///
    /// # Errors
    /// [`Error::NoSpace`]: nothing is claimed.
    fn claim_nodes(&mut self, inode: &Inode, need: usize) -> Result<()> {
        let more = alloc::claim(self.content.fs(), need as u64)?;
        self.claim_map(inode, more)
    }

    /// Reserves blocks for dirty ones, from their chosen blocks or their claim, and takes the claim
    /// for their map.
    ///
    /// Takes both claims under one lock: a write that is refused meanwhile releases the claim for a
    /// map that no page of the file seems to need. So the claim for the map is for all blocks that
    /// are wanted, and the plan puts the rest of it back.
    fn spend(&mut self, inode: &Inode, mut spot: Spot) -> Result<Reserved> {
        let Content { file, .. } = self.content;
        let fs = self.content.fs();
        let width = map::tree_width(fs, inode);
        let mut delayed = file.delayed();
        let chosen = delayed.take_chosen(spot.lblk, spot.want);
        // Blocks behind these may have chosen blocks.
        spot.want = chosen.as_ref().map_or_else(|| delayed.unchosen(spot.lblk, spot.want), Reserved::len);
        delayed.take_map(&mut self.claim, self.blocks + u64::from(spot.want), self.converted, width);
        let run = match chosen {
            Some(run) => run,
            None => {
                let mut claim = delayed.take_data(spot.want.into()).filter(|claim| claim.blocks() > 0);
                drop(delayed);
                // There is no claim only on a damaged volume.
                let run = alloc::reserve_at(fs, &file.alloc, &spot, claim.as_mut());
                file.delayed().put_back_data(claim);
                run?
            }
        };
        self.blocks += u64::from(run.len());
        Ok(run)
    }

    /// Takes or makes the claim for the map of `len` unwritten blocks.
    fn claim_parting(&mut self, inode: &Inode, lblk: u32, len: u32) -> Result<()> {
        let Content { file, .. } = self.content;
        let fs = self.content.fs();
        if self.of_pages {
            let mut delayed = file.delayed();
            delayed.no_longer_unwritten(len.into());
            self.converted += u64::from(len);
            delayed.take_map(&mut self.claim, self.blocks, self.converted, map::tree_width(fs, inode));
            return Ok(());
        }
        // Two more entries.
        let need = map::insert_blocks(fs, inode, lblk, len, self.changes.len() * 2 + 1)?;
        if need > 0 {
            let more = alloc::claim_for_map(fs, need as u64)?;
            self.claim_map(inode, more)?;
        }
        Ok(())
    }

    /// Adds `more` blocks for new nodes of the map, and claims what these nodes may cost the file's
    /// dirty pages.
    ///
    /// # Errors
    /// [`Error::NoSpace`]: nothing is added.
    fn claim_map(&mut self, inode: &Inode, more: Claim) -> Result<()> {
        let nodes = self.claim.as_ref().map_or(0, Claim::blocks) + more.blocks();
        if more.blocks() > 0 {
            self.content.claim_for_growth(inode, nodes)?;
        }
        join(&mut self.claim, more);
        Ok(())
    }

    /// Writes the data and maps it. Moves i_disksize up to `end`.
    ///
    /// # Errors
    /// The device's, the journal's, [`Error::NoSpace`] for the map.
    pub(super) fn carry_out(mut self, end: u64, write: impl FnOnce() -> Result<()>) -> Result<()> {
        self.write_and_map(end, write)
    }

    /// Writes dirty pages and maps them, as [`carry_out`](Self::carry_out) does for other data. If
    /// the plan is [synced](Self::sync) under a shared handle, the leader writes the pages of all
    /// files in one batch, so each thread sleeps once.
    ///
    /// # Errors
    /// The device's, the journal's, [`Error::NoSpace`] for the map.
    pub(super) fn carry_out_pages(mut self, end: u64, pages: Pieces) -> Result<()> {
        let content = self.content;
        let fs = content.fs();
        let mapped_after = fs.options.modes.writeback == WritebackMode::MapAfter;
        if self.synced && mapped_after && !self.changes.is_empty() {
            self.pages = pages;
            return self.carry_out(end, || Ok(()));
        }
        self.carry_out(end, || {
            io::write_pieces(fs, pages.iter())?;
            // Before a commit that may follow, so that its flush covers these pages.
            content.file.wrote(fs);
            Ok(())
        })
    }

    fn write_and_map(&mut self, end: u64, write: impl FnOnce() -> Result<()>) -> Result<()> {
        let Content { node, .. } = self.content;
        let fs = self.content.fs();
        if self.changes.is_empty() {
            write()?;
            let grows = end > node.state().size;
            let modes = &fs.options.modes;
            let journals = !self.of_pages && modes.overwrite == Overwrite::Journal;
            if journals && !grows {
                fs.counters.overwrites_journalled.add(1);
            }
            return match (grows, journals) {
                (false, false) => Ok(()),
                // In the older mode, each write has a handle of its own.
                (_, true) => fs.run_alone(node, Work { end, ..Work::default() }).1,
                (true, false) => self.map(end, false, None),
            };
        }
        let mapped_first = match fs.options.modes.writeback {
            WritebackMode::DioreadNolock if !node.state().flags.contains(InodeFlags::EXTENTS) => {
                WritebackMode::DioreadLock
            }
            mode => mode,
        };
        match mapped_first {
            WritebackMode::MapAfter => {
                write()?;
                self.map(end, false, None)
            }
            WritebackMode::DioreadLock => {
                let pending = Pending::new();
                let planned = self.changes.len();
                let mapped = self.map(end, false, Some(&pending));
                if mapped.is_err() && self.changes.len() == planned {
                    return mapped;
                }
                // The commit waits for the data of all blocks that are mapped, if not all are.
                let written = write();
                pending
                    .done(written.as_ref().copied().map_err(|e| JournalError::Aborted(e.to_string().into())));
                mapped.and(written)
            }
            WritebackMode::DioreadNolock => {
                let mut mapped: Vec<_> =
                    self.changes.iter().map(|change| Change::Convert(change.range())).collect();
                let outcome = self.map(0, true, None);
                // All, or those before the error: what was to be written to them stays dirty.
                mapped.truncate(mapped.len() - self.changes.len());
                self.changes.extend(mapped);
                outcome?;
                write()?;
                self.map(end, false, None)
            }
        }
    }

    /// Returns whether the plan has no changes.
    pub(super) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Maps the blocks as unwritten, without any data.
    ///
    /// # Errors
    /// The journal's, [`Error::NoSpace`] for the map.
    pub(super) fn allocate(mut self) -> Result<()> {
        self.map(0, true, None)
    }

    /// Runs the handle: with those of other files, or alone if its transaction must wait for data.
    /// Keeps the changes that were not made.
    fn map(&mut self, end: u64, unwritten: bool, pending: Option<&Pending>) -> Result<()> {
        let Content { node, .. } = self.content;
        let fs = self.content.fs();
        let (changes, claim) = (mem::take(&mut self.changes), self.claim.take());
        let synced = self.synced && !unwritten;
        let pages = mem::take(&mut self.pages);
        let mut work =
            Work { pages, changes, claim, credits: self.credits, end, unwritten, synced, mapped: false };
        let outcome;
        match pending {
            None => (work, outcome) = fs.combine(node, work),
            Some(pending) => {
                outcome = fs.transact(work.credits + credits::INODE + credits::SUPER, |txn| {
                    let outcome = work.run(txn, node);
                    // A plan that found no space for its first change has mapped nothing that waits
                    // for data.
                    if outcome.is_ok() || work.mapped {
                        txn.order_after(pending)?;
                    }
                    outcome
                });
            }
        }
        (self.changes, self.claim) = (work.changes, work.claim);
        outcome
    }
}

/// Pages that a commit writes.
#[derive(Debug)]
struct CommitPages(Pieces);

impl CommitData for CommitPages {
    fn writes(&self) -> Vec<(u64, Vec<&[u8]>)> {
        self.0
            .iter()
            .map(|(offset, pieces)| (*offset, pieces.iter().map(|piece| &**piece).collect()))
            .collect()
    }
}

/// The changes of one handle to one file's inode.
#[derive(Debug, Default)]
pub(super) struct Work {
    /// Pages to write before.
    pages: Pieces,
    changes: Vec<Change>,
    claim: Option<Claim>,
    credits: u32,
    end: u64,
    unwritten: bool,
    synced: bool,
    /// Some of the changes have been made.
    mapped: bool,
}

impl Work {
    /// Makes the work that only writes pending times, and waits until that is durable.
    pub(super) fn synced() -> Self {
        Self { synced: true, ..Self::default() }
    }

    /// Returns whether the thread that waits for the work waits for its commit too.
    pub(super) fn is_synced(&self) -> bool {
        self.synced
    }

    /// Returns the pages to write before it runs.
    pub(super) fn pages(&self) -> &Pieces {
        &self.pages
    }

    /// Returns the bytes of [`pages`](Self::pages).
    pub(super) fn bytes(&self) -> usize {
        self.pages.iter().flat_map(|(_, pieces)| pieces).map(|piece| piece.len()).sum()
    }

    /// Drops the pages, once they are written or have failed. Returns whether there were any.
    pub(super) fn let_go(&mut self) -> bool {
        !mem::take(&mut self.pages).is_empty()
    }

    /// Runs as [`run`](Self::run) does, and leaves the pages, if there are any left, to the commit.
    pub(super) fn run_with_pages(&mut self, txn: &mut Txn<'_>, node: &CachedInode) -> Result<()> {
        let outcome = self.run(txn, node);
        let pages = CommitPages(mem::take(&mut self.pages));
        // Some may be mapped if not all are.
        if !pages.0.is_empty() && (outcome.is_ok() || self.mapped) {
            txn.write_with_commit(pages)?;
        }
        outcome
    }

    /// Returns the credits for it, without the inode and the superblock.
    pub(super) fn credits(&self) -> u32 {
        self.credits
    }

    /// Changes the inode under the handle of `txn`, with its pending times.
    ///
    /// # Errors
    /// [`Error::NoSpace`] for the map; a damaged map. Changes before the error stay, and i_disksize
    /// moves as far as they reach. The others stay in the work.
    pub(super) fn run(&mut self, txn: &mut Txn<'_>, node: &CachedInode) -> Result<()> {
        let (end, unwritten) = (self.end, self.unwritten);
        if self.changes.is_empty() && end <= node.state().size {
            return node.update(txn, |_, _| Ok(()));
        }
        if let Some(claim) = self.claim.take() {
            txn.spend(claim);
        }
        let (changes, mapped) = (&mut self.changes, &mut self.mapped);
        let mut done = 0;
        let stopped = node.update_map(txn, |txn, inode| {
            let block_size = u64::from(txn.store().block_size);
            for change in changes.iter_mut() {
                let last = change.range().end;
                let start = txn.mark();
                match change.apply(txn, inode, unwritten) {
                    Ok(()) => {
                        (done, *mapped) = (done + 1, true);
                        grow(txn, inode, end.min(u64::from(last) * block_size))?;
                    }
                    Err(e) if txn.mark() == start => return Ok(Some(e)),
                    Err(e) => return Err(e),
                }
            }
            grow(txn, inode, end)?;
            Ok(None)
        });
        self.changes.drain(..done);
        self.claim = txn.unspent();
        match stopped? {
            None => Ok(()),
            Some(e) => txn.stop(e),
        }
    }
}

/// Returns the credits for mapping a run of `len` blocks, during which the tree may grow by a
/// level.
fn cost(fs: &Fs, inode: &Inode, len: u32) -> u32 {
    map::insert_credits(fs, inode, len) + 4 + credits::RUN
}

/// Returns where `len` blocks for `lblk`, which lies in `hole`, should be allocated.
fn spot(content: Content<'_>, inode: &Inode, lblk: u32, len: u32, hole: Range<u32>) -> Spot {
    let Content { node, file } = content;
    let before = hole.start.checked_sub(1).map(|last| map::lookup(&node.fs, inode, last));
    let goal = match before {
        Some(Ok(Mapping::Mapped { block, .. })) => Some(block + 1),
        _ => None,
    };
    let size = content.blocks_to(file.size());
    let size = size.max(lblk.saturating_add(len));
    Spot { ino: node.ino, lblk, want: len, hole, goal, size, reach: map::reach(inode) }
}

fn grow(txn: &Txn<'_>, inode: &mut Inode, end: u64) -> Result<()> {
    debug_assert!(end <= max_size(txn.store(), inode.flags));
    if end > inode.size { set_size(txn, inode, end) } else { Ok(()) }
}

impl Change {
    fn range(&self) -> Range<u32> {
        match self {
            Self::Insert(lblk, run) => *lblk..lblk + run.len(),
            Self::Convert(range) => range.clone(),
        }
    }

    /// Makes the change. If it fails, it keeps its blocks.
    fn apply(&mut self, txn: &mut Txn<'_>, inode: &mut Inode, unwritten: bool) -> Result<()> {
        match self {
            // They are unwritten already.
            Self::Convert(_) if unwritten => Ok(()),
            Self::Convert(range) => map::convert(txn, inode, range.clone(), false),
            Self::Insert(lblk, reserved) => map::insert_reserved(txn, inode, *lblk, reserved, unwritten),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::OpenOptions;
    use crate::store::alloc::Reach;
    use crate::{FallocMode, Volume};
    use lanefs_device::MemDevice;
    use std::sync::Arc;

    /// Takes all blocks that are free.
    fn take_all(fs: &Fs) -> Vec<Reserved> {
        std::iter::from_fn(|| alloc::reserve(fs, 0, u32::MAX, Reach::Volume).ok()).collect()
    }

    /// A plan whose blocks for the map were not claimed, on a volume that has none: the map finds
    /// no space, for the first or for the second of its changes, and only the writer gets the
    /// error.
    #[test]
    fn no_space_for_the_map_is_the_error_of_one_write() {
        for maps_some in [false, true] {
            no_space_for_the_map(maps_some);
        }
    }

    fn no_space_for_the_map(maps_some: bool) {
        let device = MemDevice::new(16 << 20);
        let options = lanefs_mkfs::Options { block_size: Some(4096), ..Default::default() };
        lanefs_mkfs::format(&device, &options).unwrap();
        let options = OpenOptions::new().write(true).writeback(WritebackMode::DioreadLock);
        let volume: Volume = options.use_reserved(true).open_device(Arc::new(device)).unwrap();
        let file = volume.create_file("/f").unwrap();
        // As many extents as the inode has room for.
        for i in 0..4 {
            file.fallocate(FallocMode::Allocate, i * 100 * 4096, 4096).unwrap();
        }
        let node = file.inode();
        let mut plan = WritePlan::new(node.content());
        if maps_some {
            plan.place(100, 1).unwrap().unwrap();
        }
        plan.place(350, 1).unwrap().unwrap();
        plan.claim = None;
        let rest = take_all(&node.fs);
        let mut written = false;
        let mapped = plan.carry_out(0, || {
            written = true;
            Ok(())
        });
        assert!(matches!(mapped, Err(Error::NoSpace)), "{mapped:?}");
        assert_eq!(written, maps_some);
        drop(rest);
        volume.sync().unwrap();
        file.write_at(b"goes on", 0).unwrap();
        file.sync_all().unwrap();
    }

    /// Pages over blocks that are unwritten keep their claim for the map when the plan maps them
    /// and then finds no space for other pages.
    #[test]
    fn what_is_mapped_before_no_space_is_dirty_over_unwritten_blocks() {
        let device = MemDevice::new(16 << 20);
        let options = lanefs_mkfs::Options { block_size: Some(4096), ..Default::default() };
        lanefs_mkfs::format(&device, &options).unwrap();
        let options = OpenOptions::new().write(true).writeback(WritebackMode::DioreadNolock);
        let options = options.commit_interval(std::time::Duration::ZERO);
        let volume: Volume = options.use_reserved(true).open_device(Arc::new(device)).unwrap();
        let file = volume.create_file("/f").unwrap();
        for i in 0..4 {
            file.fallocate(FallocMode::Allocate, i * 100 * 4096, 4096).unwrap();
        }
        file.write_at(&[1; 4096], 100 * 4096).unwrap();
        file.write_at(&[1; 4096], 350 * 4096).unwrap();
        let node = file.inode();
        let unwritten = || node.file().delayed().unwritten;
        assert_eq!(unwritten(), 1);
        let mut plan = WritePlan::of_pages(node.content());
        plan.place(100, 1).unwrap().unwrap();
        plan.place(350, 1).unwrap().unwrap();
        plan.claim = None;
        let rest = take_all(&node.fs);
        let mapped = plan.carry_out(0, || panic!("nothing may be written"));
        assert!(matches!(mapped, Err(Error::NoSpace)), "{mapped:?}");
        assert_eq!(unwritten(), 1);
        drop(rest);
        file.sync_all().unwrap();
        assert_eq!(unwritten(), 0);
    }

    /// Pages in a hole keep their blocks, and the claim for the map, when the map finds no block
    /// for a node: the pages find space once the node does.
    #[test]
    fn pages_that_no_map_takes_keep_their_blocks() {
        let device = MemDevice::new(16 << 20);
        let options = lanefs_mkfs::Options { block_size: Some(4096), ..Default::default() };
        lanefs_mkfs::format(&device, &options).unwrap();
        let options = OpenOptions::new().write(true).commit_interval(std::time::Duration::ZERO);
        let volume: Volume = options.use_reserved(true).open_device(Arc::new(device)).unwrap();
        let file = volume.create_file("/f").unwrap();
        for i in 0..4 {
            file.fallocate(FallocMode::Allocate, i * 100 * 4096, 4096).unwrap();
        }
        volume.sync().unwrap();
        file.write_at(&[1; 4096], 350 * 4096).unwrap();
        let node = file.inode();
        let free = || node.fs.alloc.free_on_disk();
        let before = free();
        let mut plan = WritePlan::of_pages(node.content());
        plan.place(350, 1).unwrap().unwrap();
        // What other threads have taken meanwhile.
        let claimed = plan.claim.take();
        let rest = take_all(&node.fs);
        for _ in 0..2 {
            let mapped = plan.map(0, false, None);
            assert!(matches!(mapped, Err(Error::NoSpace)), "{mapped:?}");
            assert_eq!((free(), plan.changes.len()), (before, 1));
        }
        drop(plan);
        let in_core = || {
            let delayed = node.file().delayed();
            (delayed.data_blocks(), delayed.chosen_blocks())
        };
        assert_eq!(in_core(), (1, 1));
        // The node finds a block, and the page has its own: no other is free.
        node.file().delayed().put_back(claimed);
        file.sync_all().unwrap();
        assert_eq!(in_core(), (0, 0));
        drop(rest);
        volume.sync().unwrap();
        assert_eq!(free(), before - 2, "the page's block and a node");
    }

    /// A leader without a right to the blocks reserved for root takes them for a follower with it.
    #[test]
    fn a_follower_keeps_its_right_to_reserved_blocks() {
        let device = MemDevice::new(16 << 20);
        let options = lanefs_mkfs::Options { block_size: Some(4096), ..Default::default() };
        lanefs_mkfs::format(&device, &options).unwrap();
        let options = OpenOptions::new().write(true).use_reserved(true);
        let volume: Volume = options.open_device(Arc::new(device)).unwrap();
        let (file, other) = (volume.create_file("/f").unwrap(), volume.create_file("/other").unwrap());
        for i in 0..4 {
            file.fallocate(FallocMode::Allocate, i * 100 * 4096, 4096).unwrap();
        }
        let (node, other) = (file.inode(), other.inode());
        let mut plan = WritePlan::new(node.content());
        plan.place(350, 1).unwrap().unwrap();
        plan.claim = None;
        let rest = alloc::keeping_reserved(true, || take_all(&node.fs));
        let gathers = |jobs| node.fs.combiner.gathers.store(jobs, std::sync::atomic::Ordering::Relaxed);
        gathers(2);
        std::thread::scope(|scope| {
            let leads = || alloc::keeping_reserved(true, || node.fs.combine(other, Work::synced()).1);
            let leader = scope.spawn(leads);
            std::thread::sleep(std::time::Duration::from_millis(200));
            plan.carry_out(0, || Ok(())).unwrap();
            leader.join().unwrap().unwrap();
        });
        gathers(0);
        drop(rest);
    }
}
