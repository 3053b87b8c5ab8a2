//! Runs a planned relocation, in batches of files.
//!
//! Copies are written to free blocks first. Then one transaction changes the maps and the bitmaps
//! of all files of a batch, and is checkpointed before the next batch begins.
//!
//! Invariant: a crash leaves each file with its old blocks or its new ones.

use super::Resizing;
use super::copy_runs::RunCopy;
use super::maps::{MapWalk, Visitor, WholeMap, build_tree};
use super::moves::{Moves, Targets};
use super::step::{check_credits, encode_super, encode_table};
use crate::error::{Corrupt, Result, XattrError};
use lanefs_format::extent::Extent;
use lanefs_format::{GroupFlags, Inode, Layout, Superblock, bitmap, xattr};
use lanefs_journal::Journal;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Blocks that a batch of several files changes at most: all of them are in memory.
const MAX_BATCH: u32 = 2048;

/// The changes of one transaction: blocks of maps and inode tables, and runs in the bitmaps.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) logged: BTreeMap<u64, Vec<u8>>,
    /// Copied before the transaction.
    copies: Vec<RunCopy>,
    pub(super) taken: Vec<Range<u64>>,
    pub(super) freed: Vec<Range<u64>>,
    /// The groups whose bitmaps change, and the blocks of descriptors, for all that was joined.
    groups: BTreeSet<u32>,
    tables: BTreeSet<u32>,
}

impl Batch {
    fn moved(&mut self, from: u64, len: u32, to: u64) {
        self.freed.push(from..from + u64::from(len));
        self.taken.push(to..to + u64::from(len));
    }

    /// Notes the groups of all runs that change.
    pub(super) fn note_groups(&mut self, layout: &Layout) -> Result<()> {
        for run in self.taken.iter().chain(&self.freed) {
            let groups = layout.group_of_block(run.start)?.0..=layout.group_of_block(run.end - 1)?.0;
            self.tables.extend(groups.clone().map(|group| group / layout.descs_per_block()));
            self.groups.extend(groups);
        }
        Ok(())
    }

    /// Returns how many blocks the transaction changes, those of bitmaps and descriptors and the
    /// superblock too.
    pub(super) fn cost(&self) -> u32 {
        (self.logged.len() + self.groups.len() + self.tables.len()) as u32 + 1
    }

    fn join(&mut self, other: Batch) {
        self.logged.extend(other.logged);
        self.copies.extend(other.copies);
        self.taken.extend(other.taken);
        self.freed.extend(other.freed);
        self.groups.extend(other.groups);
        self.tables.extend(other.tables);
    }
}

impl Moves {
    /// Checks that each file's part of the relocation fits into a transaction of `max` blocks, by
    /// going through all of it without a write.
    ///
    /// # Errors
    /// [`LogTooSmall`](crate::error::ResizeError::LogTooSmall); a damaged map; the device's.
    pub(super) fn check_credits(&self, volume: &Resizing, max: u32) -> Result<()> {
        let (nothing, layout) = (Batch::default(), volume.superblock.layout());
        let check = |mut one: Batch| {
            one.note_groups(&layout)?;
            check_credits(one.cost(), max)
        };
        let planner = Planner { volume, batch: &nothing, targets: &self.targets, writes: false };
        for (&block, sharers) in &self.xattrs {
            check(planner.move_attributes(block, sharers)?)?;
        }
        for (&ino, places) in &self.files {
            check(planner.move_file(ino, places.as_deref())?)?;
        }
        Ok(())
    }

    /// Copies all that lies behind the new end, and commits its new places.
    ///
    /// # Errors
    /// The errors of the journal and the device. Files that have not moved are as they were.
    pub(super) fn run(&self, volume: &mut Resizing, journal: &Journal) -> Result<()> {
        let mut batch = Batch::default();
        for (&block, sharers) in &self.xattrs {
            let planner = Planner { volume, batch: &batch, targets: &self.targets, writes: true };
            let moved = planner.move_attributes(block, sharers)?;
            volume.add(journal, &mut batch, moved)?;
        }
        for (&ino, places) in &self.files {
            let planner = Planner { volume, batch: &batch, targets: &self.targets, writes: true };
            let moved = planner.move_file(ino, places.as_deref())?;
            volume.add(journal, &mut batch, moved)?;
        }
        volume.commit_batch(journal, batch)
    }
}

/// Makes the changes of one file after the other. Writes free blocks at once, if `writes`.
struct Planner<'a> {
    volume: &'a Resizing,
    /// The changes that were joined and are not committed.
    batch: &'a Batch,
    targets: &'a Targets,
    writes: bool,
}

impl Planner<'_> {
    /// Writes a free block.
    fn write(&self, block: u64, content: &[u8]) -> Result<()> {
        if self.writes { self.volume.device.write(block, content) } else { Ok(()) }
    }

    /// Copies a block of attributes. All inodes that share it change together.
    fn move_attributes(&self, from: u64, inos: &[u32]) -> Result<Batch> {
        let mut one = Batch::default();
        let Some(&(_, to)) = self.targets.get(&from) else { return Ok(one) };
        let mut bytes = self.volume.device.read(from)?;
        let seed = self.volume.superblock.checksummer().fs_seed();
        if let Some(seed) = seed {
            let ino = inos.first().copied().unwrap_or_default();
            xattr::verify_block(&bytes, from, seed).map_err(|source| XattrError::Block {
                ino,
                block: from,
                source,
            })?;
        }
        xattr::seal_block(&mut bytes, to, seed);
        self.write(to, &bytes)?;
        for &ino in inos {
            self.change_inode(&mut one, ino, |inode, _| {
                inode.file_acl = to;
                Ok(())
            })?;
        }
        one.moved(from, 1, to);
        Ok(one)
    }

    /// Copies the runs of a file behind the end. A tree that is made anew lies in `places`.
    fn move_file(&self, ino: u32, places: Option<&[u64]>) -> Result<Batch> {
        let mut one = Batch::default();
        let (ctx, blocks) = (self.volume.superblock.inode_context(), self.volume.superblock.blocks_count());
        let device = &self.volume.device;
        self.change_inode(&mut one, ino, |inode, one| {
            let mut left = blocks;
            match places {
                Some(places) => {
                    let mut whole = WholeMap::default();
                    MapWalk { device, ctx: &ctx, ino, blocks, left: &mut left, visitor: &mut whole }
                        .file(inode)?;
                    self.split_file(inode, &whole, places, one)
                }
                None => {
                    let mut visitor = Mover { planner: self, batch: one };
                    MapWalk { device, ctx: &ctx, ino, blocks, left: &mut left, visitor: &mut visitor }
                        .file(inode)?;
                    Ok(())
                }
            }
        })?;
        Ok(one)
    }

    /// Copies the runs of a file whose extents are split, and makes its tree anew.
    fn split_file(&self, inode: &mut Inode, whole: &WholeMap, places: &[u64], one: &mut Batch) -> Result<()> {
        let mut extents = Vec::new();
        for extent in &whole.extents {
            let end = extent.ee_start + u64::from(extent.len);
            let mut stays = true;
            for (&start, &(len, to)) in self.targets.range(extent.ee_start..end) {
                if !extent.unwritten {
                    one.copies.push(RunCopy { from: start, len, to });
                }
                one.moved(start, len, to);
                let ee_block = extent.ee_block + (start - extent.ee_start) as u32;
                extents.push(Extent { ee_block, len, ee_start: to, ..*extent });
                stays = false;
            }
            if stays {
                extents.push(*extent);
            }
        }
        let (seed, size) = (inode.seed(&self.volume.superblock.checksummer()), self.volume.device.size);
        let (i_block, nodes) = build_tree(&extents, places, (inode.ino, seed), size)?;
        for (block, content) in &nodes {
            self.write(*block, content)?;
        }
        one.taken.extend(places.iter().map(|&block| block..block + 1));
        one.freed.extend(whole.nodes.iter().map(|&block| block..block + 1));
        inode.i_block = i_block;
        let sectors = u64::from(size / 512);
        inode.blocks += places.len() as u64 * sectors;
        inode.blocks = inode.blocks.saturating_sub(whole.nodes.len() as u64 * sectors);
        Ok(())
    }

    /// Changes an inode in `one`, whose slot may have changed in the batch before.
    fn change_inode(
        &self,
        one: &mut Batch,
        ino: u32,
        change: impl FnOnce(&mut Inode, &mut Batch) -> Result<()>,
    ) -> Result<()> {
        let ctx = self.volume.superblock.inode_context();
        let (block, at) = self.volume.slot_of(ino)?;
        let mut bytes = match one.logged.get(&block).or_else(|| self.batch.logged.get(&block)) {
            Some(bytes) => bytes.clone(),
            None => self.volume.device.read(block)?,
        };
        let mut inode = Inode::parse(bytes.get(at.clone()).unwrap_or_default(), ino, &ctx)?;
        change(&mut inode, one)?;
        inode.encode(bytes.get_mut(at).unwrap_or_default(), &ctx)?;
        one.logged.insert(block, bytes);
        Ok(())
    }
}

/// Moves the runs of a file that have a target.
struct Mover<'a> {
    planner: &'a Planner<'a>,
    batch: &'a mut Batch,
}

impl Visitor for Mover<'_> {
    fn data(&mut self, start: u64, len: u32, unwritten: bool) -> Result<u64> {
        let Some(&(run, to)) = self.planner.targets.get(&start) else { return Ok(start) };
        debug_assert_eq!(run, len);
        self.batch.moved(start, len, to);
        if !unwritten {
            self.batch.copies.push(RunCopy { from: start, len, to });
        }
        Ok(to)
    }

    fn node(&mut self, block: u64) -> Result<u64> {
        let Some(&(_, to)) = self.planner.targets.get(&block) else { return Ok(block) };
        self.batch.moved(block, 1, to);
        Ok(to)
    }

    fn changed(&mut self, from: u64, to: u64, content: Vec<u8>) -> Result<()> {
        match from == to {
            true => _ = self.batch.logged.insert(to, content),
            false => self.planner.write(to, &content)?,
        }
        Ok(())
    }
}

impl Resizing {
    /// Returns the block of an inode's slot, and the bytes there.
    pub(super) fn slot_of(&self, ino: u32) -> Result<(u64, Range<usize>)> {
        let layout = self.superblock.layout();
        let slot = layout.inode_slot(ino)?;
        let table = self.groups.get(slot.group as usize).map_or(0, |desc| desc.inode_table);
        let at = slot.offset as usize;
        Ok((table + u64::from(slot.table_block), at..at + usize::from(layout.inode_size())))
    }

    /// Adds a file to a batch, which is committed before if it has no room.
    fn add(&mut self, journal: &Journal, batch: &mut Batch, mut one: Batch) -> Result<()> {
        one.note_groups(&self.superblock.layout())?;
        let (need, max) = (one.cost(), journal.max_credits());
        check_credits(need, max)?;
        if batch.cost() + need > max.min(MAX_BATCH) {
            self.commit_batch(journal, std::mem::take(batch))?;
        }
        batch.join(one);
        Ok(())
    }

    fn commit_batch(&mut self, journal: &Journal, batch: Batch) -> Result<()> {
        if batch.taken.is_empty() {
            return Ok(());
        }
        self.device.copy(&batch.copies)?;
        self.unfinished = true;
        let (logged, superblock) = self.with_bitmaps(batch)?;
        self.commit(journal, &logged)?;
        self.superblock = superblock;
        journal.checkpoint()?;
        self.unfinished = false;
        Ok(())
    }

    /// Returns the blocks of a batch with those of bitmaps and descriptors, and the superblock,
    /// which is among them if a count changes.
    pub(super) fn with_bitmaps(&mut self, batch: Batch) -> Result<(BTreeMap<u64, Vec<u8>>, Superblock)> {
        let Batch { mut logged, taken, freed, .. } = batch;
        let sum = |runs: &[Range<u64>]| runs.iter().map(|run| run.end - run.start).sum::<u64>();
        let (more, less) = (sum(&freed), sum(&taken));
        let mut changed = BTreeSet::new();
        for run in taken {
            self.mark(&mut logged, &mut changed, run, true)?;
        }
        for run in freed {
            self.mark(&mut logged, &mut changed, run, false)?;
        }
        self.describe(&mut logged, &changed)?;
        let mut superblock = self.superblock.clone();
        if more != less {
            superblock.set_free_blocks_count((superblock.free_blocks_count() + more).saturating_sub(less));
            let (block, bytes) = encode_super(&self.device, &superblock)?;
            logged.insert(block, bytes);
        }
        Ok((logged, superblock))
    }

    /// Logs the descriptors of groups.
    pub(super) fn describe(&self, logged: &mut BTreeMap<u64, Vec<u8>>, groups: &BTreeSet<u32>) -> Result<()> {
        let layout = self.superblock.layout();
        let tables: BTreeSet<u32> = groups.iter().map(|group| group / layout.descs_per_block()).collect();
        for n in tables {
            let block = layout.desc_block(n)?;
            let mut bytes = self.device.read(block)?;
            encode_table(&self.superblock, &self.groups, n, &mut bytes)?;
            logged.insert(block, bytes);
        }
        Ok(())
    }

    /// Marks a run as used or free, in the bitmaps and descriptors of its groups.
    fn mark(
        &mut self,
        logged: &mut BTreeMap<u64, Vec<u8>>,
        changed: &mut BTreeSet<u32>,
        run: Range<u64>,
        used: bool,
    ) -> Result<()> {
        let (layout, csum) = (self.superblock.layout(), self.superblock.checksummer());
        let mut at = run.start;
        while at < run.end {
            let (group, bit) = layout.group_of_block(at)?;
            let len = (run.end - at).min(u64::from(layout.group_blocks(group)? - bit));
            let bits = bit as usize..bit as usize + len as usize;
            let desc = self.groups.get(group as usize).copied().unwrap_or_default();
            let mut map = match changed.insert(group) {
                true => self.bitmap_of(group)?,
                false => logged.remove(&desc.block_bitmap).unwrap_or_default(),
            };
            let (clash, block) = match used {
                true => (bitmap::next_set(&map, bits.clone()), at),
                false => (bitmap::next_zero(&map, bits.clone()), at),
            };
            if clash.is_some() {
                return Err(match used {
                    true => Corrupt::DoubleUse { block, group }.into(),
                    false => Corrupt::DoubleFree { block, group }.into(),
                });
            }
            let Some(desc) = self.groups.get_mut(group as usize) else { return Ok(()) };
            match used {
                true => bitmap::set(&mut map, bits)?,
                false => bitmap::clear(&mut map, bits)?,
            }
            let free = if used { -(len as i64) } else { len as i64 };
            desc.free_blocks_count = desc.free_blocks_count.saturating_add_signed(free as i32);
            desc.flags -= GroupFlags::BLOCK_UNINIT;
            desc.sum_block_bitmap(&map, &layout, &csum)?;
            logged.insert(desc.block_bitmap, map);
            at += len;
        }
        Ok(())
    }
}
