//! A smaller size.
//!
//! Fixed structures of groups that stay do not move, nor does the log, nor does any inode: they
//! bound the size from below. All else behind the new end moves before it ([`Moves`]), in
//! transactions that each leave a sound volume of the old size. Then one transaction cuts the
//! volume: superblock, descriptors, the bitmap of the new last group, and the blocks before the end
//! in which groups that go away had their structures.

use super::Resizing;
use super::moves::{Moves, Targets};
use super::place::{Place, Taken};
use super::reserve::Reserve;
use super::shape;
use super::step::Step;
use crate::error::{Error, ResizeError, Result};
use lanefs_format::{Compat, GroupFlags, RoCompat, Superblock, bitmap};
use lanefs_journal::Journal;

impl Resizing {
    /// Shrinks the volume to `blocks` blocks, as [`fit`](Self::fit) rounds it.
    ///
    /// # Errors
    /// [`ResizeError`], with nothing changed; those of the journal and the device, which leave a
    /// volume that has its old size or its new one after recovery.
    pub(crate) fn shrink(&mut self, blocks: u64) -> Result<()> {
        let blocks = self.fit(blocks)?;
        if blocks >= self.superblock.blocks_count() {
            return Ok(());
        }
        let moves = self.plan_shrink(blocks)?;
        self.under_journal(|volume, journal| {
            // A log that is too small for the cut is found before anything moves.
            volume.plan_cut(blocks, journal)?;
            moves.run(volume, journal)?;
            volume.check_empty_behind(blocks, &Targets::new())?;
            let step = volume.plan_cut(blocks, journal)?;
            volume.take(journal, step)
        })
    }

    /// Returns the fewest blocks that [`shrink`](Self::shrink) can give the volume.
    ///
    /// # Errors
    /// A damaged volume; the device's.
    pub(crate) fn minimum(&self) -> Result<u64> {
        let layout = self.superblock.layout();
        let own = layout.group_base_meta(0) + 2 + layout.inode_table_blocks();
        let (mut low, mut high) = (layout.first_data_block() + u64::from(own), layout.blocks_count());
        while low < high {
            let middle = low + (high - low) / 2;
            match self.fit(middle).and_then(|blocks| self.plan_shrink(blocks).map(|_| blocks)) {
                Ok(blocks) => high = blocks.max(low),
                Err(Error::Resize(_)) => low = middle + 1,
                Err(e) => return Err(e),
            }
        }
        Ok(high)
    }

    /// Checks that what does not move lies before `blocks`, and plans the moves of all else.
    fn plan_shrink(&self, blocks: u64) -> Result<Moves> {
        let layout = shape::with_blocks(&self.superblock, blocks, true)?.layout();
        let kept = (layout.group_count() as usize).min(self.groups.len());
        let (stay, go) = self.groups.split_at(kept);
        let fixed = stay.iter().flat_map(|desc| Place::of(desc).runs(&layout));
        let what = "a bitmap or inode table of a group that stays";
        let log = self.log.iter().flat_map(|log| &log.runs);
        let log = log.map(|run| ("the log", run.physical..run.physical + u64::from(run.len)));
        let top = self.top_of_reserve()?.map(|block| ("a block of the resize inode", block..block + 1));
        let mut fixed = fixed.map(|run| (what, run)).chain(log).chain(top);
        if let Some((what, run)) = fixed.find(|(_, run)| run.end > blocks) {
            return Err(ResizeError::Immovable { blocks, what, block: run.start }.into());
        }
        for (n, desc) in go.iter().enumerate().rev() {
            self.check_no_inode(blocks, (kept + n) as u32, desc.free_inodes_count, layout.inodes_count())?;
        }
        Moves::plan(self, blocks)
    }

    /// Checks that a group that goes away has no inode in use, by its bitmap and by its count.
    fn check_no_inode(&self, blocks: u64, group: u32, free: u32, max: u32) -> Result<()> {
        let before = self.superblock.layout();
        let ipg = before.inodes_per_group();
        let map = self.inode_bitmap_of(group)?.unwrap_or_default();
        if free == ipg && bitmap::next_set(&map, 0..ipg as usize).is_none() {
            return Ok(());
        }
        let last = (0..ipg).rev().find(|&n| bitmap::test(&map, n as usize));
        let ino = before.ino(group, last.unwrap_or(0))?;
        Err(ResizeError::InodeInUse { blocks, ino, max }.into())
    }

    /// The double indirect block of the resize inode, if there is one.
    pub(super) fn top_of_reserve(&self) -> Result<Option<u64>> {
        if !self.superblock.has(Compat::RESIZE_INODE) {
            return Ok(None);
        }
        let table = self.groups.first().map_or(0, |desc| desc.inode_table);
        Ok(Some(Reserve::read(&self.device, &self.superblock, table)?.top()))
    }

    /// Plans the transaction that cuts the volume.
    fn plan_cut(&self, blocks: u64, journal: &Journal) -> Result<Step> {
        let max = journal.max_credits();
        let mut need = 0;
        // Without the resize inode the transaction has fewer blocks.
        for keep_reserve in [true, false] {
            let shape = shape::with_blocks(&self.superblock, blocks, keep_reserve)?;
            let last = self.bitmap_of(shape.layout().group_count() - 1)?;
            let step = match Step::shrink(&self.device, (&self.superblock, &self.groups), shape, last) {
                // The resize inode has no room for so many backups.
                Err(Error::NotSupported(_)) if keep_reserve => continue,
                step => step?,
            };
            need = step.logged.len() as u32;
            if need <= max {
                return Ok(step);
            }
            if !self.superblock.has(Compat::RESIZE_INODE) {
                break;
            }
        }
        Err(ResizeError::LogTooSmall { need, max }.into())
    }

    /// Checks that nothing lies behind `end` but fixed structures and what has a target.
    pub(super) fn check_empty_behind(&self, end: u64, targets: &Targets) -> Result<()> {
        let layout = self.superblock.layout();
        for group in layout.group_of_block(end)?.0..layout.group_count() {
            let first = layout.group_first_block(group)?;
            let group_end = first + u64::from(layout.group_blocks(group)?);
            let mut map = self.bitmap_of(group)?;
            let base = first..first + u64::from(layout.group_base_meta(group));
            // A run may begin in the group before.
            let earlier = targets.range(..first).next_back();
            let moved = earlier.into_iter().chain(targets.range(first..group_end));
            let moved = moved.map(|(&start, &(len, _))| start.max(first)..start + u64::from(len));
            for run in self.fixed.within(first..group_end).chain([base]).chain(moved) {
                if run.start < run.end.min(group_end) {
                    let bits = (run.start - first) as usize..(run.end.min(group_end) - first) as usize;
                    bitmap::clear(&mut map, bits)?;
                }
            }
            let bits = end.saturating_sub(first) as usize..(group_end - first) as usize;
            if let Some(bit) = bitmap::next_set(&map, bits) {
                let (what, block) = ("a block that no file owns", first + bit as u64);
                return Err(ResizeError::Immovable { blocks: end, what, block }.into());
            }
        }
        Ok(())
    }

    /// Whether `flag` says that a bitmap of the group was never written.
    fn is_unwritten(&self, group: u32, flag: GroupFlags) -> bool {
        let ro = self.superblock.features().ro_compat;
        ro.intersects(RoCompat::METADATA_CSUM | RoCompat::GDT_CSUM)
            && self.groups.get(group as usize).is_some_and(|desc| desc.flags.contains(flag))
    }

    /// The block bitmap of a group, verified, or as it would be written first.
    pub(super) fn bitmap_of(&self, group: u32) -> Result<Vec<u8>> {
        if self.is_unwritten(group, GroupFlags::BLOCK_UNINIT) {
            return self.initial_bitmap(group);
        }
        let desc = self.groups.get(group as usize).copied().unwrap_or_default();
        let map = self.device.read(desc.block_bitmap)?;
        desc.verify_block_bitmap(&map, group, &self.superblock.layout(), &self.superblock.checksummer())?;
        Ok(map)
    }

    /// The inode bitmap of a group, verified; `None` if it was never written.
    pub(super) fn inode_bitmap_of(&self, group: u32) -> Result<Option<Vec<u8>>> {
        if self.is_unwritten(group, GroupFlags::INODE_UNINIT) {
            return Ok(None);
        }
        let desc = self.groups.get(group as usize).copied().unwrap_or_default();
        let map = self.device.read(desc.inode_bitmap)?;
        desc.verify_inode_bitmap(&map, group, &self.superblock.layout(), &self.superblock.checksummer())?;
        Ok(Some(map))
    }

    /// A bitmap in which only fixed structures are in use, those of other groups too.
    fn initial_bitmap(&self, group: u32) -> Result<Vec<u8>> {
        let sb: &Superblock = &self.superblock;
        let layout = sb.layout();
        let (first, len) = (layout.group_first_block(group)?, layout.group_blocks(group)?);
        let mut map = vec![0; layout.block_size() as usize];
        bitmap::set(&mut map, 0..layout.group_base_meta(group) as usize)?;
        for run in self.fixed.within(first..first + u64::from(len)) {
            bitmap::set(&mut map, (run.start - first) as usize..(run.end - first) as usize)?;
        }
        bitmap::set(&mut map, len as usize..layout.block_size() as usize * 8)?;
        Ok(map)
    }
}

/// All bitmaps and inode tables.
pub(super) fn fixed(sb: &Superblock, groups: &[lanefs_format::GroupDesc]) -> Taken {
    Taken::new(&sb.layout(), &groups.iter().map(Place::of).collect::<Vec<_>>())
}
