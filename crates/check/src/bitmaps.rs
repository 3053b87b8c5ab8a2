//! Compares the bitmaps of each group, and all counts of free blocks and inodes, with the blocks
//! and inodes that the walk found in use.

use crate::finding::Structure;
use crate::rule::Rule;
use crate::{Check, CheckError};
use lanefs_device::AlignedBuf;
use lanefs_format::{FileType, FormatError, GroupDesc, GroupFlags, bitmap};
use std::ops::Range;

/// Free things of all groups.
#[derive(Debug, Default)]
struct Totals {
    blocks: u64,
    inodes: u64,
    /// No group was left out.
    whole: bool,
}

impl Check {
    /// Checks the bitmaps and counts of all groups, and the counts of the superblock.
    pub(crate) fn check_bitmaps(&mut self) -> Result<(), CheckError> {
        let mut totals = Totals { whole: true, ..Totals::default() };
        let mut map = AlignedBuf::zeroed(self.layout.block_size() as usize);
        for group in 0..self.layout.group_count() {
            let Some(desc) = self.groups.get(&group).copied() else {
                totals.whole = false;
                continue;
            };
            totals.blocks += u64::from(self.check_blocks_of(group, &desc, &mut map)?);
            totals.inodes += u64::from(self.check_inodes_of(group, &desc, &mut map)?);
        }
        let clusters = self.layout.blocks_count().div_ceil(1 << self.layout.cluster_bits());
        self.blocks_in_use = clusters.saturating_sub(totals.blocks) << self.layout.cluster_bits();
        // A program that did not close the volume has not written them.
        if !totals.whole || self.unclean {
            return Ok(());
        }
        // In blocks, where descriptors count clusters.
        let (found, counted) = (self.sb.free_blocks_count(), totals.blocks << self.layout.cluster_bits());
        if found != counted {
            self.findings.add(Structure::Superblock, Rule::FreeBlocksTotal { found, counted });
        }
        let found = self.sb.free_inodes_count();
        if u64::from(found) != totals.inodes {
            let counted = totals.inodes;
            self.findings.add(Structure::Superblock, Rule::FreeInodesTotal { found, counted });
        }
        Ok(())
    }

    /// Checks the block bitmap of a group and its count. Returns the free clusters.
    fn check_blocks_of(&mut self, group: u32, desc: &GroupDesc, map: &mut [u8]) -> Result<u32, CheckError> {
        let clusters = self.layout.group_clusters(group).unwrap_or(0);
        let range = 0..clusters as usize;
        let used = self.blocks.group(group).map_or(0, |used| bitmap::count_set(used, range.clone()));
        let counted = clusters - used as u32;
        let found = desc.free_blocks_count;
        let structure = Structure::GroupDescriptor { group };
        if found != counted {
            self.findings.add(structure, Rule::FreeBlocks { found, counted });
        }
        if self.has_uninit() && desc.flags.contains(GroupFlags::BLOCK_UNINIT) {
            self.check_block_uninit(group, desc);
            return Ok(counted);
        }
        self.io.read(desc.block_bitmap, map)?;
        let structure = Structure::BlockBitmap { group };
        let verified = desc.verify_block_bitmap(map, group, &self.layout, &self.csum);
        if self.bitmap_is_whole(structure, verified) {
            let first = self.layout.group_first_block(group).unwrap_or(0);
            let used = self.blocks.group(group).unwrap_or_default();
            let place = |bit: usize| first + ((bit as u64) << self.layout.cluster_bits());
            let rules = differences(map, used, range, place);
            rules.into_iter().for_each(|rule| self.findings.add(structure, rule));
        }
        Ok(counted)
    }

    /// Checks that nothing but its own metadata is in use in a group without a bitmap.
    fn check_block_uninit(&mut self, group: u32, desc: &GroupDesc) {
        let (Some(used), Ok(first)) = (self.blocks.group(group), self.layout.group_first_block(group)) else {
            return;
        };
        let mut used = used.to_vec();
        let bits = self.layout.cluster_bits();
        let end = first + u64::from(self.layout.group_blocks(group).unwrap_or(0));
        let base = ("base", first, u64::from(self.layout.group_base_meta(group)));
        for (_, block, len) in self.tables(desc).into_iter().chain([base]) {
            let (from, to) = (block.clamp(first, end) - first, (block + len).clamp(first, end) - first);
            // The range is inside of the group.
            let _ = bitmap::clear(&mut used, (from >> bits) as usize..to.div_ceil(1 << bits) as usize);
        }
        if let Some(bit) = bitmap::next_set(&used, 0..used.len() * 8) {
            let rule = Rule::BlocksInUninit { block: first + ((bit as u64) << bits) };
            self.findings.add(Structure::GroupDescriptor { group }, rule);
        }
    }

    /// Checks the inode bitmap of a group and its counts. Returns the free inodes.
    fn check_inodes_of(&mut self, group: u32, desc: &GroupDesc, map: &mut [u8]) -> Result<u32, CheckError> {
        let all = self.layout.inodes_per_group();
        let first = group * all + 1;
        let mut used = vec![0; all.div_ceil(8) as usize];
        let (mut count, mut dirs) = (0, 0);
        let notes = self.inodes.group(group).unwrap_or_default();
        let reserved = self.sb.first_ino().saturating_sub(first).min(all) as usize;
        for bit in 0..notes.len().max(reserved) {
            let note = notes.get(bit).copied().unwrap_or_default();
            if note.in_use || bit < reserved {
                count += 1;
                dirs += u32::from(note.in_use && note.file_type == Some(FileType::Directory));
                used[bit / 8] |= 1 << (bit % 8);
            }
        }
        let free = all - count;
        let structure = Structure::GroupDescriptor { group };
        let uninit = self.has_uninit() && desc.flags.contains(GroupFlags::INODE_UNINIT);
        if desc.free_inodes_count != free {
            let found = desc.free_inodes_count;
            self.findings.add(structure, Rule::FreeInodes { found, counted: free });
        }
        if desc.used_dirs_count != dirs {
            let found = desc.used_dirs_count;
            self.findings.add(structure, Rule::UsedDirs { found, counted: dirs });
        }
        if uninit && count > 0 {
            self.findings.add(structure, Rule::InodesInUninit { counted: count });
        }
        if uninit {
            return Ok(free);
        }
        self.io.read(desc.inode_bitmap, map)?;
        let structure = Structure::InodeBitmap { group };
        let verified = desc.verify_inode_bitmap(map, group, &self.layout, &self.csum);
        if self.bitmap_is_whole(structure, verified) {
            let place = |bit: usize| u64::from(first) + bit as u64;
            let rules = differences(map, &used, 0..all as usize, place);
            rules.into_iter().for_each(|rule| self.findings.add(structure, rule));
        }
        Ok(free)
    }

    fn bitmap_is_whole(&mut self, structure: Structure, verified: Result<(), FormatError>) -> bool {
        let Err(e) = verified else { return true };
        self.findings.add(structure, e);
        false
    }
}

/// Returns how a bitmap differs from the blocks or inodes in use: at most one rule for each
/// direction, with the number of the first difference by `place`.
fn differences(map: &[u8], used: &[u8], range: Range<usize>, place: impl Fn(usize) -> u64) -> Vec<Rule> {
    let mut rules = Vec::new();
    let whole = range.end / 8;
    let same = |bit: usize| bitmap::test(map, bit) == bitmap::test(used, bit);
    if map.get(..whole) != used.get(..whole) || !(whole * 8..range.end).all(same) {
        let (mut unmarked, mut unused) = ((0, None), (0, None));
        for bit in range.clone() {
            let kind = match (bitmap::test(map, bit), bitmap::test(used, bit)) {
                (false, true) => &mut unmarked,
                (true, false) => &mut unused,
                _ => continue,
            };
            kind.0 += 1;
            kind.1.get_or_insert(place(bit));
        }
        if let (count, Some(first)) = unmarked {
            rules.push(Rule::UsedButFree { first, count });
        }
        if let (count, Some(first)) = unused {
            rules.push(Rule::FreeButUsed { first, count });
        }
    }
    if let Some(bit) = bitmap::next_zero(map, range.end..map.len() * 8) {
        rules.push(Rule::Padding { bit });
    }
    rules
}
