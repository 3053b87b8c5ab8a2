//! One step of growth: a transaction between two sound volumes.
//!
//! The plan of a step is made while nothing else changes the volume: the new superblock and
//! descriptors, and the full new content of each block below the old end that changes. What lies
//! behind the old end is no part of the old volume; it is written in place and flushed before the
//! transaction. So a replay never writes behind the end that the superblock had before, and a crash
//! leaves the old volume or the new one.

use super::Blocks;
use super::place::{GroupPlace, Taken, places};
use super::reserve::Reserve;
use super::source::MetadataSource;
use crate::error::{Corrupt, ResizeError, Result};
use lanefs_format::{
    Checksummer, Compat, GroupDesc, GroupFlags, Layout, RoCompat, SUPERBLOCK_SIZE, Superblock, bitmap,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A planned step.
#[derive(Debug)]
pub(super) struct ResizeStep {
    before: Layout,
    pub(super) superblock: Superblock,
    pub(super) groups: Vec<GroupDesc>,
    taken: Taken,
    /// Blocks of old groups that become free, each run inside of one group.
    pub(super) freed: Vec<Range<u64>>,
    /// New content of blocks below the old end.
    pub(super) logged: BTreeMap<u64, Vec<u8>>,
}

impl ResizeStep {
    /// Plans the growth of the volume that `sb` and `groups` describe to the size and shape of
    /// `superblock`.
    ///
    /// # Errors
    /// Structures that contradict each other; the device's.
    pub(super) fn grow(
        source: &dyn MetadataSource,
        (sb, groups): (&Superblock, &[GroupDesc]),
        superblock: Superblock,
    ) -> Result<Self> {
        let (before, layout) = (sb.layout(), superblock.layout());
        let places = places(&layout, before.group_count())?;
        let mut step = Self {
            taken: Taken::new(&layout, &places),
            groups: groups.to_vec(),
            freed: Vec::new(),
            logged: BTreeMap::new(),
            before,
            superblock,
        };
        step.groups.reserve_exact(places.len());
        for (group, place) in (before.group_count()..).zip(&places) {
            let desc = GroupDesc {
                block_bitmap: place.block_bitmap,
                inode_bitmap: place.inode_bitmap,
                inode_table: place.inode_table,
                ..step.empty_group(group)?
            };
            step.groups.push(desc);
        }
        let mut freed = step.left_behind()?;
        freed.push(step.extension()?);
        freed.extend(step.change_reserve(source, sb)?);
        let mut changed = step.free(source, sb, freed)?;
        changed.extend(before.group_count()..layout.group_count());
        step.sum_new_bitmaps()?;
        step.describe(source, changed)?;
        step.log_superblock(source)?;
        Ok(step)
    }

    /// Plans to give the volume the smaller shape of `superblock`. The caller has seen that nothing
    /// lies behind the new end but structures of groups that go away. `last` is the bitmap of the
    /// new last group.
    ///
    /// # Errors
    /// Structures that contradict each other; the device's.
    pub(super) fn shrink(
        source: &dyn MetadataSource,
        (sb, groups): (&Superblock, &[GroupDesc]),
        superblock: Superblock,
        last: Vec<u8>,
    ) -> Result<Self> {
        let (before, layout) = (sb.layout(), superblock.layout());
        let kept = (layout.group_count() as usize).min(groups.len());
        let (stay, go) = groups.split_at(kept);
        let mut step = Self {
            taken: Taken::default(),
            groups: stay.to_vec(),
            freed: Vec::new(),
            logged: BTreeMap::new(),
            before,
            superblock,
        };
        let end = layout.group_count() - 1;
        if let Some(desc) = step.groups.get_mut(end as usize) {
            desc.flags -= GroupFlags::BLOCK_UNINIT;
            step.logged.insert(desc.block_bitmap, last);
        }
        let mut freed = step.left_behind()?;
        let gone = Taken::new(&before, &go.iter().map(GroupPlace::of).collect::<Vec<_>>());
        for group in 0..layout.group_count() {
            let first = layout.group_first_block(group)?;
            freed.extend(gone.within(first..first + u64::from(layout.group_blocks(group)?)));
        }
        freed.extend(step.change_reserve(source, sb)?);
        let mut changed = step.free(source, sb, freed)?;
        step.cut(end)?;
        changed.insert(end);
        step.describe(source, changed)?;
        step.log_superblock(source)?;
        Ok(step)
    }

    /// Marks the bits behind the end of the last group, and counts its free blocks.
    fn cut(&mut self, group: u32) -> Result<()> {
        let (layout, csum) = (self.superblock.layout(), self.csum());
        let (bits, len) = (layout.block_size() as usize * 8, layout.group_blocks(group)? as usize);
        let Some(desc) = self.groups.get_mut(group as usize) else { return Ok(()) };
        let Some(map) = self.logged.get_mut(&desc.block_bitmap) else { return Ok(()) };
        bitmap::set(map, len..bits)?;
        desc.free_blocks_count = (len - bitmap::count_set(map, 0..len)) as u32;
        Ok(desc.sum_block_bitmap(map, &layout, &csum)?)
    }

    fn csum(&self) -> Checksummer {
        self.superblock.checksummer()
    }

    /// Returns whether flags of the descriptors tell which bitmaps are unwritten.
    fn has_flags(&self) -> bool {
        self.superblock.features().ro_compat.intersects(RoCompat::METADATA_CSUM | RoCompat::GDT_CSUM)
    }

    /// Returns the descriptor of a new group without a file.
    fn empty_group(&self, group: u32) -> Result<GroupDesc> {
        let layout = self.superblock.layout();
        let used =
            layout.group_base_meta(group) + self.taken_bits(group)?.map(|run| run.len() as u32).sum::<u32>();
        let mut desc = GroupDesc {
            free_blocks_count: layout.group_blocks(group)?.saturating_sub(used),
            free_inodes_count: layout.inodes_per_group(),
            flags: GroupFlags::INODE_ZEROED,
            ..GroupDesc::default()
        };
        if self.has_flags() {
            desc.flags |= GroupFlags::INODE_UNINIT;
            desc.itable_unused = layout.inodes_per_group();
            // The bitmap follows from the descriptor, but for what other groups have here. The last
            // one always exists, as mke2fs has it.
            let own = layout.groups_per_flex() == 1 || self.taken_bits(group)?.next().is_none();
            desc.flags.set(GroupFlags::BLOCK_UNINIT, own && group != layout.group_count() - 1);
        }
        Ok(desc)
    }

    /// Returns the bits of a new group that bitmaps and tables take.
    fn taken_bits(&self, group: u32) -> Result<impl Iterator<Item = Range<usize>> + '_> {
        let layout = self.superblock.layout();
        let first = layout.group_first_block(group)?;
        let runs = self.taken.within(first..first + u64::from(layout.group_blocks(group)?));
        Ok(runs.map(move |run| (run.start - first) as usize..(run.end - first) as usize))
    }

    /// Returns the blocks that the old last group gets.
    fn extension(&self) -> Result<Range<u64>> {
        let layout = self.superblock.layout();
        let last = self.before.group_count() - 1;
        let end = layout.group_first_block(last)? + u64::from(layout.group_blocks(last)?);
        Ok(self.before.blocks_count()..end)
    }

    /// Returns the blocks at the starts of old groups that hold no copies and no reserve any
    /// longer.
    fn left_behind(&self) -> Result<Vec<Range<u64>>> {
        let layout = self.superblock.layout();
        let mut runs = Vec::new();
        for group in 0..self.before.group_count().min(layout.group_count()) {
            let first = layout.group_first_block(group)?;
            let now = first + u64::from(layout.group_base_meta(group));
            runs.push(now..first + u64::from(self.before.group_base_meta(group)));
        }
        runs.retain(|run| !run.is_empty());
        Ok(runs)
    }

    /// Logs the resize inode of the new shape. Returns its double indirect block if it goes away.
    fn change_reserve(&mut self, source: &dyn MetadataSource, sb: &Superblock) -> Result<Option<Range<u64>>> {
        if !sb.has(Compat::RESIZE_INODE) {
            return Ok(None);
        }
        let table = self.groups.first().map_or(0, |desc| desc.inode_table);
        let reserve = Reserve::read(source, sb, table)?;
        match self.superblock.has(Compat::RESIZE_INODE) {
            true => reserve.resized(&self.superblock, &mut self.logged).map(|()| None),
            false => Ok(Some(reserve.removed(&mut self.logged))),
        }
    }

    /// Frees runs of blocks in old groups, each inside of one group: in the bitmap, if it is a
    /// written one, and in the descriptor. Returns the groups.
    fn free(
        &mut self,
        source: &dyn MetadataSource,
        sb: &Superblock,
        mut runs: Vec<Range<u64>>,
    ) -> Result<BTreeSet<u32>> {
        let (layout, csum, flags) = (self.superblock.layout(), self.csum(), self.has_flags());
        let mut changed = BTreeSet::new();
        runs.retain(|run| !run.is_empty());
        for run in &runs {
            let (group, bit) = layout.group_of_block(run.start)?;
            let (bit, len) = (bit as usize, (run.end - run.start) as usize);
            let Some(desc) = self.groups.get_mut(group as usize) else { continue };
            desc.free_blocks_count += len as u32;
            let first = changed.insert(group);
            if flags && desc.flags.contains(GroupFlags::BLOCK_UNINIT) {
                continue;
            }
            let held = self.logged.remove(&desc.block_bitmap);
            let was_read = held.is_none();
            let mut map = held.map_or_else(|| source.read(desc.block_bitmap), Ok)?;
            if first && was_read {
                desc.verify_block_bitmap(&map, group, &sb.layout(), &csum)?;
            }
            if let Some(clear) = bitmap::next_zero(&map, bit..bit + len) {
                let block = run.start + (clear - bit) as u64;
                return Err(Corrupt::DoubleFree { block, group }.into());
            }
            bitmap::clear(&mut map, bit..bit + len)?;
            desc.sum_block_bitmap(&map, &layout, &csum)?;
            self.logged.insert(desc.block_bitmap, map);
        }
        self.freed = runs;
        Ok(changed)
    }

    /// Notes the checksums of the new groups' bitmaps in their descriptors.
    fn sum_new_bitmaps(&mut self) -> Result<()> {
        let (layout, csum) = (self.superblock.layout(), self.csum());
        for group in self.before.group_count()..layout.group_count() {
            let Some(mut desc) = self.groups.get(group as usize).copied() else { continue };
            if !desc.flags.contains(GroupFlags::BLOCK_UNINIT) {
                desc.sum_block_bitmap(&self.block_bitmap(group)?, &layout, &csum)?;
            }
            if !desc.flags.contains(GroupFlags::INODE_UNINIT) {
                desc.sum_inode_bitmap(&self.inode_bitmap()?, &layout, &csum)?;
            }
            if let Some(slot) = self.groups.get_mut(group as usize) {
                *slot = desc;
            }
        }
        Ok(())
    }

    /// Returns the block bitmap of a new group.
    fn block_bitmap(&self, group: u32) -> Result<Vec<u8>> {
        let layout = self.superblock.layout();
        let mut map = vec![0; layout.block_size() as usize];
        bitmap::set(&mut map, 0..layout.group_base_meta(group) as usize)?;
        for bits in self.taken_bits(group)? {
            bitmap::set(&mut map, bits)?;
        }
        bitmap::set(&mut map, layout.group_blocks(group)? as usize..layout.block_size() as usize * 8)?;
        Ok(map)
    }

    /// Returns the inode bitmap of any new group.
    fn inode_bitmap(&self) -> Result<Vec<u8>> {
        let layout = self.superblock.layout();
        let mut map = vec![0; layout.block_size() as usize];
        bitmap::set(&mut map, layout.inodes_per_group() as usize..layout.block_size() as usize * 8)?;
        Ok(map)
    }

    /// Logs the descriptors of the groups that changed, those behind the old end excepted.
    fn describe(&mut self, source: &dyn MetadataSource, changed: BTreeSet<u32>) -> Result<()> {
        let layout = self.superblock.layout();
        let tables: BTreeSet<u32> = changed.iter().map(|group| group / layout.descs_per_block()).collect();
        for n in tables {
            let block = layout.desc_block(n)?;
            if block < self.before.blocks_count() {
                let base = match n < self.before.desc_blocks() {
                    true => source.read(block)?,
                    false => vec![0; layout.block_size() as usize],
                };
                let bytes = self.encode_table(n, base)?;
                self.logged.insert(block, bytes);
            }
        }
        Ok(())
    }

    /// Returns the `n`th block of descriptors, over its old content.
    fn encode_table(&self, n: u32, mut bytes: Vec<u8>) -> Result<Vec<u8>> {
        encode_table(&self.superblock, &self.groups, n, &mut bytes)?;
        Ok(bytes)
    }

    fn log_superblock(&mut self, source: &dyn MetadataSource) -> Result<()> {
        let blocks = self.groups.iter().map(|desc| u64::from(desc.free_blocks_count)).sum();
        let inodes = self.groups.iter().map(|desc| desc.free_inodes_count).sum();
        self.superblock.set_free_blocks_count(blocks);
        self.superblock.set_free_inodes_count(inodes);
        let (block, bytes) = encode_super(source, &self.superblock)?;
        self.logged.insert(block, bytes);
        Ok(())
    }

    /// Writes what lies behind the old end: bitmaps, inode tables and descriptors of new groups.
    /// Bytes from `zeros_from` on read as zeros already.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn write_new_groups(&self, device: &Blocks, zeros_from: u64) -> Result<()> {
        let layout = self.superblock.layout();
        let mut tables: Range<u64> = 0..0;
        for group in self.before.group_count()..layout.group_count() {
            let Some(desc) = self.groups.get(group as usize) else { continue };
            let table = desc.inode_table..desc.inode_table + u64::from(layout.inode_table_blocks());
            if table.start == tables.end {
                tables.end = table.end;
            } else {
                device.zero(std::mem::replace(&mut tables, table), zeros_from)?;
            }
            if !desc.flags.contains(GroupFlags::BLOCK_UNINIT) {
                device.write(desc.block_bitmap, &self.block_bitmap(group)?)?;
            }
            if !desc.flags.contains(GroupFlags::INODE_UNINIT) {
                device.write(desc.inode_bitmap, &self.inode_bitmap()?)?;
            }
        }
        device.zero(tables, zeros_from)?;
        for n in self.before.desc_blocks()..layout.desc_blocks() {
            let block = layout.desc_block(n)?;
            if block >= self.before.blocks_count() {
                device.write(block, &self.encode_table(n, vec![0; layout.block_size() as usize])?)?;
            }
        }
        Ok(())
    }
}

/// Encodes the `n`th block of descriptors into `bytes`.
///
/// # Errors
/// A block too short for its descriptors.
pub(super) fn encode_table(sb: &Superblock, groups: &[GroupDesc], n: u32, bytes: &mut [u8]) -> Result<()> {
    let (layout, csum) = (sb.layout(), sb.checksummer());
    let first = n * layout.descs_per_block();
    let slots =
        bytes.chunks_exact_mut(usize::from(layout.desc_size())).take(layout.descs_per_block() as usize);
    for ((group, desc), slot) in (first..).zip(groups.iter().skip(first as usize)).zip(slots) {
        desc.encode(slot, group, &layout, &csum)?;
    }
    Ok(())
}

/// Returns the block of the superblock, and its first byte there.
pub(super) fn super_place(sb: &Superblock) -> (u64, usize) {
    if sb.block_size() == 1024 { (1, 0) } else { (0, 1024) }
}

/// Returns the superblock's block, with the new superblock in it.
///
/// # Errors
/// The device's.
pub(super) fn encode_super(source: &dyn MetadataSource, sb: &Superblock) -> Result<(u64, Vec<u8>)> {
    let (block, at) = super_place(sb);
    let mut bytes = source.read(block)?;
    if let Some(slot) = bytes.get_mut(at..at + SUPERBLOCK_SIZE) {
        slot.copy_from_slice(&sb.encode());
    }
    Ok((block, bytes))
}

/// Checks that a transaction of `max` blocks has room for `need`.
///
/// # Errors
/// [`ResizeError::LogTooSmall`].
pub(super) fn check_credits(need: u32, max: u32) -> Result<()> {
    if need > max {
        return Err(ResizeError::LogTooSmall { need, max }.into());
    }
    Ok(())
}
