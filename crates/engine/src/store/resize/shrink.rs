//! A smaller size.
//!
//! Bitmaps and inode tables of groups that stay do not move: they bound the size from below. All
//! else behind the new end moves before it: the log ([`NewLog`]), inodes ([`Renumber`]), and blocks
//! of files ([`Moves`]), in transactions that each leave a sound volume of the old size. Then one
//! transaction cuts the volume: superblock, descriptors, the bitmap of the new last group, and the
//! blocks before the end in which groups that go away had their structures.

use super::Resizing;
use super::moves::{FreeSpace, Moves};
use super::new_log::NewLog;
use super::place::{GroupPlace, Taken};
use super::renumber::Renumber;
use super::reserve::Reserve;
use super::shape;
use super::step::ResizeStep;
use super::usage::Usage;
use crate::error::{Error, ResizeError, Result};
use lanefs_format::{Compat, GroupFlags, RoCompat, Superblock, bitmap};
use std::ops::Range;

/// The planned moves of the log and of files, without those of inodes.
#[derive(Debug)]
struct ShrinkPlan {
    log: Option<NewLog>,
    moves: Moves,
}

impl Resizing {
    /// Shrinks the volume to `blocks` blocks, as [`fit`](Self::fit) rounds it.
    ///
    /// # Errors
    /// [`ResizeError`], with nothing changed; errors of the journal and the device, which leave a
    /// volume that has its old size or its new one after recovery.
    pub(crate) fn shrink(&mut self, blocks: u64) -> Result<()> {
        let blocks = self.fit(blocks)?;
        if blocks >= self.superblock.blocks_count() {
            return Ok(());
        }
        let plan = self.plan_shrink(&Usage::read(self, blocks)?, blocks)?;
        let max = self.max_credits()?;
        let renumber = self.plan_numbers(&plan, blocks, max)?;
        let ShrinkPlan { log, mut moves } = plan;
        if let Some(log) = log {
            self.move_log(&log)?;
        }
        self.under_journal(|volume, journal| {
            renumber.run(volume, journal)?;
            moves.renumber(&renumber.numbers);
            moves.run(volume, journal)?;
            volume.check_empty_behind(blocks)?;
            let step = volume.plan_cut(blocks, journal.max_credits())?;
            volume.take(journal, step)
        })
    }

    /// Returns the fewest blocks that [`shrink`](Self::shrink) can give the volume.
    ///
    /// # Errors
    /// A damaged volume; the device's.
    pub(crate) fn minimum(&self) -> Result<u64> {
        let high = self.superblock.blocks_count();
        let low = self.least()?.min(high);
        let usage = Usage::read(self, low)?;
        let max = self.max_credits()?;
        let fits = |wanted, max| self.fits(&usage, low..wanted, max);
        let least = search(low, high, |wanted| fits(wanted, None))?;
        // Few logs are too small for a shrink. Only of the result are maps and directories read.
        if least == high || fits(least, Some(max))?.is_some() {
            return Ok(least);
        }
        search(least + 1, high, |wanted| fits(wanted, Some(max)))
    }

    /// Returns the size that the volume gets if it is asked for the end of `sizes`; `None` if that
    /// is too small, or less than their start. Transactions of more than `max` blocks make a size
    /// too small; `None` leaves them out of account.
    ///
    /// # Errors
    /// A damaged volume; the device's.
    fn fits(&self, usage: &Usage, sizes: Range<u64>, max: Option<u32>) -> Result<Option<u64>> {
        let plan = || -> Result<Option<u64>> {
            let blocks = self.fit(sizes.end)?;
            if blocks < sizes.start {
                return Ok(None);
            }
            let plan = self.plan_shrink(usage, blocks)?;
            if let Some(max) = max {
                self.plan_numbers(&plan, blocks, max)?;
            }
            Ok(Some(blocks))
        };
        match plan() {
            Err(Error::Resize(_)) => Ok(None),
            other => other,
        }
    }

    /// Plans the new numbers of inodes, and checks that each transaction of the shrink has at most
    /// `max` blocks: a log that is too small is found before anything moves.
    ///
    /// # Errors
    /// [`ResizeError::LogTooSmall`]; a damaged volume; the device's.
    fn plan_numbers(&self, plan: &ShrinkPlan, blocks: u64, max: u32) -> Result<Renumber> {
        let renumber = Renumber::plan(self, blocks, self.groups_of(blocks)?)?;
        self.plan_cut(blocks, max)?;
        renumber.check_credits(max)?;
        if let Some(log) = &plan.log {
            log.check_credits(self, max)?;
        }
        plan.moves.check_credits(self, max)?;
        Ok(renumber)
    }

    /// Returns how many blocks a transaction can have.
    fn max_credits(&self) -> Result<u32> {
        Ok(self.open_journal(self.log.as_ref())?.max_credits())
    }

    /// Returns a size that the volume cannot be smaller than, by the counts of its bitmaps.
    fn least(&self) -> Result<u64> {
        let layout = self.superblock.layout();
        let (mut files, mut free) = (Vec::new(), Vec::new());
        let mut inodes = 0;
        for group in 0..layout.group_count() {
            let (first, len) = (layout.group_first_block(group)?, layout.group_blocks(group)?);
            let used = bitmap::count_set(&self.bitmap_of(group)?, 0..len as usize) as u64;
            let fixed: u64 =
                self.fixed.within(first..first + u64::from(len)).map(|run| run.end - run.start).sum();
            files.push(used.saturating_sub(fixed + u64::from(layout.group_base_meta(group))));
            free.push(u64::from(len) - used);
            let map = self.inode_bitmap_of(group)?.unwrap_or_default();
            if !map.is_empty() {
                inodes += bitmap::count_set(&map, 0..layout.inodes_per_group() as usize) as u32;
            }
        }
        let fewest = inodes.div_ceil(layout.inodes_per_group()).max(1) - 1;
        let (mut behind, mut room): (u64, u64) = (files.iter().sum(), 0);
        let mut least = layout.first_data_block() + 1;
        for (group, (files, free)) in (0..).zip(files.into_iter().zip(free)) {
            behind -= files;
            let own = u64::from(layout.group_base_meta(group));
            // Blocks of this group that files before and behind the end need.
            let need = if room + free >= behind { behind.saturating_sub(room).max(own) } else { u64::MAX };
            if group >= fewest && need != u64::MAX {
                least = layout.group_first_block(group)? + need.max(1);
                break;
            }
            room += free;
        }
        let own = layout.group_base_meta(0) + 2 + layout.inode_table_blocks();
        Ok(least.max(layout.first_data_block() + u64::from(own)))
    }

    /// Returns how many groups the volume has with `blocks` blocks.
    fn groups_of(&self, blocks: u64) -> Result<u32> {
        Ok(shape::with_blocks(&self.superblock, blocks, true)?.layout().group_count())
    }

    /// Checks that what does not move lies before `blocks`, and plans the moves of all else.
    fn plan_shrink(&self, usage: &Usage, blocks: u64) -> Result<ShrinkPlan> {
        let layout = self.superblock.layout();
        let kept = self.groups_of(blocks)?;
        let stay = self.groups.iter().take(kept as usize);
        let mut fixed = stay.flat_map(|desc| GroupPlace::of(desc).runs(&layout));
        if let Some(run) = fixed.find(|run| run.end > blocks) {
            let what = "a bitmap or inode table of a group that stays";
            return Err(ResizeError::Immovable { blocks, what, block: run.start }.into());
        }
        usage.check(self, blocks)?;
        self.check_inodes(usage, blocks, kept)?;
        let mut room = FreeSpace::new(&usage.free, blocks);
        let log = NewLog::plan(self, usage, blocks, &mut room)?;
        for run in log.iter().flat_map(|log| &log.freed) {
            room.add(run.clone());
        }
        Ok(ShrinkPlan { log, moves: Moves::plan(self, usage, blocks, &mut room)? })
    }

    /// Checks that `kept` groups have numbers for all inodes in use, and those that keep theirs:
    /// the ones that the superblock names, and with `stable_inodes` all.
    fn check_inodes(&self, usage: &Usage, blocks: u64, kept: u32) -> Result<()> {
        let (raw, per_group) = (self.superblock.raw(), self.superblock.layout().inodes_per_group());
        let max = kept * per_group;
        let named = [
            raw.s_journal_inum,
            raw.s_orphan_file_inum,
            raw.s_usr_quota_inum,
            raw.s_grp_quota_inum,
            raw.s_prj_quota_inum,
            raw.s_lpf_ino,
            raw.s_snapshot_inum,
        ];
        let stable = if self.superblock.has(Compat::STABLE_INODES) { self.last_inode(usage)? } else { 0 };
        let others = [self.superblock.first_ino() - 1, stable];
        let fixed = named.map(|ino| ino.get()).into_iter().chain(others);
        if let Some(ino) = fixed.max().filter(|&ino| ino > max) {
            return Err(ResizeError::InodeInUse { blocks, ino, max }.into());
        }
        match usage.inodes.iter().sum::<u32>().checked_sub(max) {
            Some(more) if more > 0 => Err(ResizeError::TooFewInodes { blocks, max, more }.into()),
            _ => Ok(()),
        }
    }

    /// Returns the last inode in use.
    fn last_inode(&self, usage: &Usage) -> Result<u32> {
        let per_group = self.superblock.layout().inodes_per_group();
        let Some(group) = usage.inodes.iter().rposition(|used| *used > 0) else { return Ok(0) };
        let map = self.inode_bitmap_of(group as u32)?.unwrap_or_default();
        let last = (0..per_group).rev().find(|&n| bitmap::test(&map, n as usize));
        Ok(last.map_or(0, |n| group as u32 * per_group + n + 1))
    }

    /// Returns the double indirect block of the resize inode, if there is one.
    pub(super) fn top_of_reserve(&self) -> Result<Option<u64>> {
        if !self.superblock.has(Compat::RESIZE_INODE) {
            return Ok(None);
        }
        let table = self.groups.first().map_or(0, |desc| desc.inode_table);
        Ok(Some(Reserve::read(&self.device, &self.superblock, table)?.top()))
    }

    /// Plans the transaction that cuts the volume, of at most `max` blocks.
    fn plan_cut(&self, blocks: u64, max: u32) -> Result<ResizeStep> {
        let mut need = 0;
        // Without the resize inode the transaction has fewer blocks.
        for keep_reserve in [true, false] {
            let shape = shape::with_blocks(&self.superblock, blocks, keep_reserve)?;
            let last = self.bitmap_of(shape.layout().group_count() - 1)?;
            let step = match ResizeStep::shrink(&self.device, (&self.superblock, &self.groups), shape, last) {
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

    /// Checks that nothing lies behind `end` but fixed structures.
    fn check_empty_behind(&self, end: u64) -> Result<()> {
        match self.last_stray(end, &[])? {
            Some(block) => {
                let what = self.stray(block);
                Err(ResizeError::Immovable { blocks: end, what, block }.into())
            }
            None => Ok(()),
        }
    }

    /// Returns what a block in use is that no file owns.
    pub(super) fn stray(&self, block: u64) -> &'static str {
        match self.superblock.mmp() {
            Some((mmp, _)) if mmp == block => "the MMP block, which lanefs mmp off frees,",
            _ => "a block that no file owns",
        }
    }

    /// Returns the last block in use from `from` on that is neither of fixed structures nor of the
    /// runs in `owned`, which are sorted.
    pub(super) fn last_stray(&self, from: u64, owned: &[Range<u64>]) -> Result<Option<u64>> {
        let layout = self.superblock.layout();
        for group in (layout.group_of_block(from)?.0..layout.group_count()).rev() {
            let first = layout.group_first_block(group)?;
            let end = first + u64::from(layout.group_blocks(group)?);
            let mut map = self.bitmap_of(group)?;
            let base = first..first + u64::from(layout.group_base_meta(group));
            let owned = owned.get(owned.partition_point(|run| run.end <= first)..).unwrap_or_default();
            let owned = owned.iter().take_while(|run| run.start < end).cloned();
            for run in self.fixed.within(first..end).chain([base]).chain(owned) {
                let (start, end) = (run.start.max(first), run.end.min(end));
                if start < end {
                    bitmap::clear(&mut map, (start - first) as usize..(end - first) as usize)?;
                }
            }
            let bits = from.saturating_sub(first) as usize..(end - first) as usize;
            if bitmap::next_set(&map, bits.clone()).is_some() {
                let last = bits.rev().find(|&bit| bitmap::test(&map, bit));
                return Ok(last.map(|bit| first + bit as u64));
            }
        }
        Ok(None)
    }

    /// Returns whether descriptors have checksums, and with them the flags of unwritten bitmaps.
    pub(super) fn has_group_checksums(&self) -> bool {
        let ro = self.superblock.features().ro_compat;
        ro.intersects(RoCompat::METADATA_CSUM | RoCompat::GDT_CSUM)
    }

    /// Returns whether `flag` says that a bitmap of the group was never written.
    pub(super) fn is_unwritten(&self, group: u32, flag: GroupFlags) -> bool {
        self.has_group_checksums()
            && self.groups.get(group as usize).is_some_and(|desc| desc.flags.contains(flag))
    }

    /// Returns the block bitmap of a group, verified, or as it would be written first. All fixed
    /// metadata is in use there.
    ///
    /// # Errors
    /// [`Corrupt::BitmapMissesMetadata`](crate::error::Corrupt::BitmapMissesMetadata), a wrong
    /// checksum; the device's.
    pub(super) fn bitmap_of(&self, group: u32) -> Result<Vec<u8>> {
        let layout = self.superblock.layout();
        if self.is_unwritten(group, GroupFlags::BLOCK_UNINIT) {
            return self.zones.initial_bitmap(&layout, group);
        }
        let desc = self.groups.get(group as usize).copied().unwrap_or_default();
        let map = self.device.read(desc.block_bitmap)?;
        desc.verify_block_bitmap(&map, group, &layout, &self.superblock.checksummer())?;
        self.zones.check_bitmap(&layout, group, &map)?;
        Ok(map)
    }

    /// Returns the inode bitmap of a group, verified; `None` if it was never written.
    pub(super) fn inode_bitmap_of(&self, group: u32) -> Result<Option<Vec<u8>>> {
        if self.is_unwritten(group, GroupFlags::INODE_UNINIT) {
            return Ok(None);
        }
        let desc = self.groups.get(group as usize).copied().unwrap_or_default();
        let map = self.device.read(desc.inode_bitmap)?;
        desc.verify_inode_bitmap(&map, group, &self.superblock.layout(), &self.superblock.checksummer())?;
        Ok(Some(map))
    }
}

/// Returns the blocks of all bitmaps and inode tables.
pub(super) fn fixed(sb: &Superblock, groups: &[lanefs_format::GroupDesc]) -> Taken {
    Taken::new(&sb.layout(), &groups.iter().map(GroupPlace::of).collect::<Vec<_>>())
}

/// Returns the fewest blocks, from `low` to `high`, that `fits` returns for a number that was
/// tried: it rounds down, and has `None` for what is too small. `high` fits.
fn search(low: u64, mut high: u64, mut fits: impl FnMut(u64) -> Result<Option<u64>>) -> Result<u64> {
    let (mut below, mut next, mut stride) = (low, low, 1_u64);
    while below < high {
        match fits(next)? {
            Some(blocks) => high = blocks,
            None => below = next + 1,
        }
        // Beside the bound first, where most volumes have it.
        stride = stride.saturating_mul(2);
        next = below + stride.min(high.saturating_sub(below) / 2);
    }
    Ok(high)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panic")]
mod tests {
    use super::*;

    /// Volumes of up to 2^64 blocks; a search that takes steps of one would not end.
    #[test]
    fn a_minimum_is_found_in_few_steps_in_volumes_of_any_size() {
        for bits in [0, 1, 4, 31, 32, 33, 48, 63] {
            let high = (1 << bits) + 5;
            for least in [1, 2, high / 3, high / 2, high - high / 5, high - 1, high].map(|n: u64| n.max(1)) {
                let mut tries = 0;
                let found = search(1, high, |blocks| {
                    tries += 1;
                    assert!(tries <= 200, "{tries} tries for {least} of {high}");
                    Ok((blocks >= least).then_some(blocks))
                });
                assert_eq!(found.unwrap(), least, "of {high}");
            }
        }
    }
}
