//! The fixed metadata of a volume, which no file may own.
//!
//! A hostile extent that points at an inode table would have a plain file write change inodes.
//! The zones of a flex group (superblock copies, descriptors, bitmaps, inode tables) are worked
//! out when a block in it is first asked for, so that a large volume costs what is used of it.

use super::Fs;
use crate::alloc::read_desc;
use crate::error::{Corrupt, Result};
use std::ops::Range;
use std::sync::OnceLock;

/// Sorted ranges of blocks with the group whose metadata they are.
type Ranges = Box<[(Range<u64>, u32)]>;

#[derive(Debug)]
pub(super) struct Zones {
    flexes: Box<[OnceLock<Ranges>]>,
    /// The journal's blocks, sorted; set once it is known.
    journal: Box<[Range<u64>]>,
}

impl Zones {
    pub(super) fn new(flexes: u32, mut journal: Vec<Range<u64>>) -> Self {
        journal.sort_by_key(|r| r.start);
        Self { flexes: (0..flexes).map(|_| OnceLock::new()).collect(), journal: journal.into() }
    }

    /// Whether a file can own the `len` blocks from `start` on.
    pub(super) fn check(&self, fs: &Fs, start: u64, len: u64) -> Result<()> {
        let outside = || Corrupt::BlockOutside { block: start, blocks: fs.layout.blocks_count() };
        let end = start.checked_add(len).ok_or_else(outside)?;
        if fs.layout.check_blocks(start, len.max(1)).is_err() {
            return Err(outside().into());
        }
        let per_flex = fs.layout.groups_per_flex().max(1);
        let first = fs.layout.group_of_block(start)?.0 / per_flex;
        let last = fs.layout.group_of_block(end.saturating_sub(1).max(start))?.0 / per_flex;
        for flex in first..=last {
            let Some(cell) = self.flexes.get(flex as usize) else { continue };
            let ranges = match cell.get() {
                Some(ranges) => ranges,
                None => {
                    let ranges = ranges_of(fs, flex)?;
                    cell.get_or_init(|| ranges)
                }
            };
            let i = ranges.partition_point(|(r, _)| r.end <= start);
            if let Some((zone, group)) = ranges.get(i).filter(|(r, _)| r.start < end) {
                return Err(Corrupt::SystemZone { block: zone.start.max(start), group: *group }.into());
            }
        }
        let i = self.journal.partition_point(|r| r.end <= start);
        match self.journal.get(i).filter(|r| r.start < end) {
            Some(r) => Err(Corrupt::JournalBlock { block: r.start.max(start) }.into()),
            None => Ok(()),
        }
    }
}

fn ranges_of(fs: &Fs, flex: u32) -> Result<Ranges> {
    let per_flex = fs.layout.groups_per_flex().max(1);
    let first = flex.saturating_mul(per_flex);
    let mut ranges = Vec::new();
    for group in first..first.saturating_add(per_flex).min(fs.layout.group_count()) {
        let base = fs.layout.group_first_block(group)?;
        let desc = read_desc(fs, group)?;
        let parts = [
            (base, fs.layout.group_base_meta(group)),
            (desc.block_bitmap, 1),
            (desc.inode_bitmap, 1),
            (desc.inode_table, fs.layout.inode_table_blocks()),
        ];
        ranges.extend(
            parts.iter().filter(|p| p.1 > 0).map(|&(s, n)| (s..s.saturating_add(u64::from(n)), group)),
        );
    }
    ranges.sort_by_key(|(r, _)| (r.start, r.end));
    // Adjacent and overlapping ranges become one, so that a search by end is right.
    let mut merged: Vec<(Range<u64>, u32)> = Vec::with_capacity(ranges.len());
    for (r, group) in ranges {
        match merged.last_mut() {
            Some((last, _)) if r.start <= last.end => last.end = last.end.max(r.end),
            _ => merged.push((r, group)),
        }
    }
    Ok(merged.into())
}
