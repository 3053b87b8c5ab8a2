//! Runs a planned relocation, in batches of files.

use super::maps::{Visitor, Walk};
use super::moves::{Moves, Targets};
use super::step::encode_table;
use super::{Blocks, Resizing};
use crate::error::{Corrupt, ResizeError, Result, XattrError};
use lanefs_format::{GroupFlags, Inode, Layout, bitmap, xattr};
use lanefs_journal::Journal;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Blocks that are copied at a time.
const COPY: u32 = 256;

/// Blocks that a batch of several files changes at most: all of them are in memory.
const MAX_BATCH: u32 = 2048;

/// A run that moves: its blocks of before, and the first one from now on.
type Moved = (Range<u64>, u64);

/// What one transaction changes: blocks of maps and inode tables, and runs in the bitmaps.
#[derive(Debug, Default)]
struct Batch {
    logged: BTreeMap<u64, Vec<u8>>,
    moved: Vec<Moved>,
    /// The groups whose bitmaps change, and the blocks of descriptors, for all that was joined.
    groups: BTreeSet<u32>,
    tables: BTreeSet<u32>,
}

impl Batch {
    /// Notes the groups of all runs that move.
    fn note_groups(&mut self, layout: &Layout) -> Result<()> {
        for (from, to) in &self.moved {
            let len = from.end - from.start;
            for run in [from.clone(), *to..to + len] {
                let groups = layout.group_of_block(run.start)?.0..=layout.group_of_block(run.end - 1)?.0;
                self.tables.extend(groups.clone().map(|group| group / layout.descs_per_block()));
                self.groups.extend(groups);
            }
        }
        Ok(())
    }

    /// Returns how many blocks the transaction changes, those of bitmaps and descriptors too.
    fn cost(&self) -> u32 {
        (self.logged.len() + self.groups.len() + self.tables.len()) as u32
    }

    fn join(&mut self, other: Batch) {
        self.logged.extend(other.logged);
        self.moved.extend(other.moved);
        self.groups.extend(other.groups);
        self.tables.extend(other.tables);
    }
}

impl Moves {
    /// Copies all that lies behind the new end, and commits its new places.
    ///
    /// # Errors
    /// [`ResizeError::LogTooSmall`] for a file whose map has more blocks than a transaction; those
    /// of the journal and the device. What has not moved is as it was.
    pub(super) fn run(&self, volume: &mut Resizing, journal: &Journal) -> Result<()> {
        let mut batch = Batch::default();
        for (&block, sharers) in &self.xattrs {
            let moved = self.move_attributes(volume, &batch, block, sharers)?;
            volume.add(journal, &mut batch, moved)?;
        }
        for &ino in &self.files {
            let moved = self.move_file(volume, &batch, ino)?;
            volume.add(journal, &mut batch, moved)?;
        }
        volume.commit_batch(journal, batch)
    }

    /// Copies a block of attributes. All inodes that share it change together.
    fn move_attributes(&self, volume: &Resizing, batch: &Batch, from: u64, inos: &[u32]) -> Result<Batch> {
        let mut one = Batch::default();
        let Some(&(_, to)) = self.targets.get(&from) else { return Ok(one) };
        let mut bytes = volume.device.read(from)?;
        let seed = volume.superblock.checksummer().fs_seed();
        if let Some(seed) = seed {
            let ino = inos.first().copied().unwrap_or_default();
            xattr::verify_block(&bytes, from, seed).map_err(|source| XattrError::Block {
                ino,
                block: from,
                source,
            })?;
        }
        xattr::seal_block(&mut bytes, to, seed);
        volume.device.write(to, &bytes)?;
        for &ino in inos {
            volume.change_inode(batch, &mut one, ino, |inode, _| {
                inode.file_acl = to;
                Ok(())
            })?;
        }
        one.moved.push((from..from + 1, to));
        Ok(one)
    }

    /// Copies the runs of a file behind the end.
    fn move_file(&self, volume: &Resizing, batch: &Batch, ino: u32) -> Result<Batch> {
        let mut one = Batch::default();
        let (ctx, blocks) = (volume.superblock.inode_context(), volume.superblock.blocks_count());
        let device = &volume.device;
        volume.change_inode(batch, &mut one, ino, |inode, one| {
            let mut visitor = Mover { device, targets: &self.targets, batch: one };
            let mut left = blocks;
            Walk { device, ctx: &ctx, ino, blocks, left: &mut left, visitor: &mut visitor }.file(inode)?;
            Ok(())
        })?;
        Ok(one)
    }
}

/// Moves what has a target.
struct Mover<'a> {
    device: &'a Blocks,
    targets: &'a Targets,
    batch: &'a mut Batch,
}

impl Visitor for Mover<'_> {
    fn data(&mut self, start: u64, len: u32, unwritten: bool) -> Result<u64> {
        let Some(&(run, to)) = self.targets.get(&start) else { return Ok(start) };
        debug_assert_eq!(run, len);
        self.batch.moved.push((start..start + u64::from(len), to));
        let mut done = 0;
        while done < len && !unwritten {
            let n = COPY.min(len - done);
            let bytes = self.device.read_run(start + u64::from(done), n)?;
            self.device.write(to + u64::from(done), &bytes)?;
            done += n;
        }
        Ok(to)
    }

    fn node(&mut self, block: u64) -> Result<u64> {
        let Some(&(_, to)) = self.targets.get(&block) else { return Ok(block) };
        self.batch.moved.push((block..block + 1, to));
        Ok(to)
    }

    fn changed(&mut self, from: u64, to: u64, content: Vec<u8>) -> Result<()> {
        match from == to {
            true => _ = self.batch.logged.insert(to, content),
            false => self.device.write(to, &content)?,
        }
        Ok(())
    }
}

impl Resizing {
    /// Changes an inode in `one`, whose slot may have changed in `batch` before.
    fn change_inode(
        &self,
        batch: &Batch,
        one: &mut Batch,
        ino: u32,
        change: impl FnOnce(&mut Inode, &mut Batch) -> Result<()>,
    ) -> Result<()> {
        let (layout, ctx) = (self.superblock.layout(), self.superblock.inode_context());
        let slot = layout.inode_slot(ino)?;
        let table = self.groups.get(slot.group as usize).map_or(0, |desc| desc.inode_table);
        let block = table + u64::from(slot.table_block);
        let mut bytes = match one.logged.get(&block).or_else(|| batch.logged.get(&block)) {
            Some(bytes) => bytes.clone(),
            None => self.device.read(block)?,
        };
        let at = slot.offset as usize..slot.offset as usize + usize::from(layout.inode_size());
        let mut inode = Inode::parse(bytes.get(at.clone()).unwrap_or_default(), ino, &ctx)?;
        change(&mut inode, one)?;
        inode.encode(bytes.get_mut(at).unwrap_or_default(), &ctx)?;
        one.logged.insert(block, bytes);
        Ok(())
    }

    /// Adds a file to a batch, which is committed before if it has no room.
    fn add(&mut self, journal: &Journal, batch: &mut Batch, mut one: Batch) -> Result<()> {
        one.note_groups(&self.superblock.layout())?;
        let (need, max) = (one.cost(), journal.max_credits());
        if need > max {
            return Err(ResizeError::LogTooSmall { need, max }.into());
        }
        if batch.cost() + need > max.min(MAX_BATCH) {
            self.commit_batch(journal, std::mem::take(batch))?;
        }
        batch.join(one);
        Ok(())
    }

    fn commit_batch(&mut self, journal: &Journal, batch: Batch) -> Result<()> {
        if batch.moved.is_empty() {
            return Ok(());
        }
        self.unfinished = true;
        let layout = self.superblock.layout();
        let Batch { mut logged, moved, .. } = batch;
        let mut changed = BTreeSet::new();
        for (from, to) in moved {
            let len = from.end - from.start;
            self.mark(&mut logged, &mut changed, to..to + len, true)?;
            self.mark(&mut logged, &mut changed, from, false)?;
        }
        let tables: BTreeSet<u32> = changed.iter().map(|group| group / layout.descs_per_block()).collect();
        for n in tables {
            let block = layout.desc_block(n)?;
            let mut bytes = self.device.read(block)?;
            encode_table(&self.superblock, &self.groups, n, &mut bytes)?;
            logged.insert(block, bytes);
        }
        self.commit(journal, &logged)?;
        journal.checkpoint()?;
        self.unfinished = false;
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
