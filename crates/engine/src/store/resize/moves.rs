//! Moves what lies behind the new end of a volume to free blocks before it.
//!
//! A [`Moves`] is planned as a whole before anything is written: every run behind the end gets one
//! free run of the same length. Files then move in batches. The copies of a batch are written to
//! blocks that are free, and one transaction changes the maps and the bitmaps of all its files. So
//! a crash leaves each file with its old blocks or its new ones.

use super::Resizing;
use super::maps::{Visitor, Walk};
use crate::error::{Corrupt, ResizeError, Result};
use lanefs_format::{EXT4_RESIZE_INO, Inode, InodeUse, bitmap};
use std::collections::{BTreeMap, BTreeSet};

/// Where runs behind the end go: the first block of each, with the length and the new place.
pub(super) type Targets = BTreeMap<u64, (u32, u64)>;

/// Runs of free blocks: the first block of each, with the length.
type FreeRuns = BTreeMap<u64, u64>;

/// The inodes whose attributes lie in a block behind the end.
type Sharers = BTreeMap<u64, Vec<u32>>;

/// A planned relocation.
#[derive(Debug)]
pub(super) struct Moves {
    pub(super) targets: Targets,
    /// The inodes whose maps change.
    pub(super) files: Vec<u32>,
    pub(super) xattrs: Sharers,
}

impl Moves {
    /// Plans to empty the blocks from `end` on.
    ///
    /// # Errors
    /// [`ResizeError`]: something that does not move, or no free run for something that does. A
    /// damaged volume; the device's.
    pub(super) fn plan(volume: &Resizing, end: u64) -> Result<Self> {
        let (sb, device) = (&volume.superblock, &volume.device);
        let ctx = sb.inode_context();
        let free = free_runs(volume)?;
        // No block belongs to two files: together they have no more than the bitmaps have in use.
        let mut left = sb.blocks_count().saturating_sub(free.values().sum());
        let mut found = Found { volume, free: &free, end, is_log: false, runs: Vec::new() };
        if let Some(block) = volume.top_of_reserve()? {
            found.check(block, 1)?;
        }
        let mut moves = Self { targets: Targets::new(), files: Vec::new(), xattrs: Sharers::new() };
        let own = [sb.raw().s_journal_inum.get(), sb.raw().s_orphan_file_inum.get()];
        each_inode(volume, |mut inode| {
            let before = found.runs.len();
            let (ino, blocks) = (inode.ino, sb.blocks_count());
            found.is_log = ino == sb.raw().s_journal_inum.get();
            Walk { device, ctx: &ctx, ino, blocks, left: &mut left, visitor: &mut found }.file(&mut inode)?;
            if let Some(&(block, _)) = found.runs.get(before) {
                if own.contains(&inode.ino) {
                    let what = "a file of the file system itself";
                    return Err(ResizeError::Immovable { blocks: end, what, block }.into());
                }
                moves.files.push(inode.ino);
            }
            if inode.file_acl != 0 {
                found.is_log = false;
                found.check(inode.file_acl, 1)?;
            }
            if inode.file_acl >= end {
                moves.xattrs.entry(inode.file_acl).or_default().push(inode.ino);
            }
            Ok(())
        })?;
        found.runs.extend(moves.xattrs.keys().map(|&block| (block, 1)));
        moves.targets = targets(volume, end, found.runs, &free)?;
        volume.check_empty_behind(end, &moves.targets)?;
        Ok(moves)
    }
}

/// Collects the runs of files behind the end, and checks all runs of files.
struct Found<'a> {
    volume: &'a Resizing,
    free: &'a FreeRuns,
    end: u64,
    /// Whether the file is the log.
    is_log: bool,
    runs: Vec<(u64, u32)>,
}

impl Found<'_> {
    /// Checks that a run does not meet fixed structures, the log, or blocks that are free.
    fn check(&self, start: u64, len: u32) -> Result<()> {
        let layout = self.volume.superblock.layout();
        if !self.is_log {
            self.volume.zones.check(&layout, start, len.into())?;
        }
        match self.free.range(..start + u64::from(len)).next_back() {
            Some((&first, &free)) if first + free > start => {
                let block = first.max(start);
                Err(Corrupt::FreeBlockInUse { block, group: layout.group_of_block(block)?.0 }.into())
            }
            _ => Ok(()),
        }
    }
}

impl Visitor for Found<'_> {
    fn data(&mut self, start: u64, len: u32, _unwritten: bool) -> Result<u64> {
        self.check(start, len)?;
        if start + u64::from(len) > self.end {
            self.runs.push((start, len));
        }
        Ok(start)
    }

    fn node(&mut self, block: u64) -> Result<u64> {
        self.data(block, 1, false)
    }

    fn changed(&mut self, _from: u64, _to: u64, _content: Vec<u8>) -> Result<()> {
        Ok(())
    }
}

/// Returns the free runs of the volume.
fn free_runs(volume: &Resizing) -> Result<FreeRuns> {
    let mut free = FreeRuns::new();
    let layout = volume.superblock.layout();
    for group in 0..layout.group_count() {
        let map = volume.bitmap_of(group)?;
        let first = layout.group_first_block(group)?;
        let bits = layout.group_blocks(group)? as usize;
        let mut at = 0;
        while let Some(run) = bitmap::next_run(&map, at..bits, bits) {
            at = run.end;
            let (start, len) = (first + run.start as u64, run.len() as u64);
            match free.last_entry().filter(|last| last.key() + last.get() == start) {
                Some(mut last) => *last.get_mut() += len,
                None => _ = free.insert(start, len),
            }
        }
    }
    Ok(free)
}

/// Finds a free run before `end` for each of `runs`, the longest first.
fn targets(volume: &Resizing, end: u64, mut runs: Vec<(u64, u32)>, free: &FreeRuns) -> Result<Targets> {
    let layout = volume.superblock.layout();
    // By length and then place, so that the search for the best fit is one look.
    let before_end = free.range(..end).map(|(&start, &len)| (len.min(end - start), start));
    let mut by_len: BTreeSet<(u64, u64)> = before_end.collect();
    runs.sort_by_key(|&(start, len)| (std::cmp::Reverse(len), start));
    let mut targets = Targets::new();
    for (start, len) in runs {
        let wanted = u64::from(len);
        let Some(&(room, to)) = by_len.range((wanted, 0)..).next() else {
            return Err(ResizeError::NoRun { blocks: end, len }.into());
        };
        by_len.remove(&(room, to));
        if room > wanted {
            by_len.insert((room - wanted, to + wanted));
        }
        if targets.insert(start, (len, to)).is_some() {
            let group = layout.group_of_block(start)?.0;
            return Err(Corrupt::DoubleUse { block: start, group }.into());
        }
    }
    Ok(targets)
}

/// Calls `f` with each inode in use.
fn each_inode(volume: &Resizing, mut f: impl FnMut(Inode) -> Result<()>) -> Result<()> {
    let (sb, device) = (&volume.superblock, &volume.device);
    let (layout, ctx) = (sb.layout(), sb.inode_context());
    let size = usize::from(layout.inode_size());
    for (group, desc) in (0..).zip(&volume.groups) {
        let Some(map) = volume.inode_bitmap_of(group)? else { continue };
        let mut held: (u64, Vec<u8>) = (0, Vec::new());
        let mut index = 0;
        while let Some(bit) = bitmap::next_set(&map, index..layout.inodes_per_group() as usize) {
            index = bit + 1;
            let ino = layout.ino(group, bit as u32)?;
            let slot = layout.inode_slot(ino)?;
            let block = desc.inode_table + u64::from(slot.table_block);
            if held.0 != block {
                held = (block, device.read(block)?);
            }
            let at = slot.offset as usize;
            let bytes = held.1.get(at..at + size).unwrap_or_default();
            // Reserved inodes without a use are all zero. The blocks of the resize inode are where
            // the superblocks are.
            if InodeUse::of(bytes)?.mode != 0 && ino != EXT4_RESIZE_INO {
                f(Inode::parse(bytes, ino, &ctx)?)?;
            }
        }
    }
    Ok(())
}
