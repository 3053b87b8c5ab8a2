//! Places of the bitmaps and inode tables of new groups.
//!
//! With `flex_bg` the new groups of a flex group keep theirs together, from the start of the first
//! of them on: block bitmaps, inode bitmaps, tables. Otherwise, and where a table does not fit so,
//! each group has its own.

use crate::error::{Error, Result};
use lanefs_format::{GroupDesc, Layout};
use std::ops::Range;

/// The places of a group's structures: block bitmap, inode bitmap, inode table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GroupPlace {
    pub(super) block_bitmap: u64,
    pub(super) inode_bitmap: u64,
    pub(super) inode_table: u64,
}

impl GroupPlace {
    pub(super) fn of(desc: &GroupDesc) -> Self {
        Self {
            block_bitmap: desc.block_bitmap,
            inode_bitmap: desc.inode_bitmap,
            inode_table: desc.inode_table,
        }
    }

    /// Returns the runs that the structures take.
    pub(super) fn runs(&self, layout: &Layout) -> [Range<u64>; 3] {
        let table = u64::from(layout.inode_table_blocks());
        [(self.block_bitmap, 1), (self.inode_bitmap, 1), (self.inode_table, table)]
            .map(|(start, len)| start..start + len)
    }
}

/// Returns the places for all groups from `from` on.
pub(super) fn places(layout: &Layout, from: u32) -> Result<Vec<GroupPlace>> {
    let (flex, count) = (layout.groups_per_flex(), layout.group_count());
    let mut places = Vec::new();
    let mut group = from;
    while group < count {
        let end = (group / flex + 1).saturating_mul(flex).min(count);
        match together(layout, group..end)? {
            Some(found) if flex > 1 => places.extend(found),
            _ => {
                for own in group..end {
                    places.extend(together(layout, own..own + 1)?.ok_or(Error::NoSpace)?);
                }
            }
        }
        group = end;
    }
    Ok(places)
}

/// Places the structures of `groups` one behind the other; `None` if they do not fit into them.
fn together(layout: &Layout, groups: Range<u32>) -> Result<Option<Vec<GroupPlace>>> {
    let last = groups.end.saturating_sub(1);
    let end = layout.group_first_block(last)? + u64::from(layout.group_blocks(last)?);
    let mut cursor = Cursor { layout, at: layout.group_first_block(groups.start)?, end };
    let mut take = |len: u32| groups.clone().map(|_| cursor.take(len)).collect::<Result<Option<Vec<_>>>>();
    let (Some(blocks), Some(inodes)) = (take(1)?, take(1)?) else { return Ok(None) };
    let Some(tables) = take(layout.inode_table_blocks())? else { return Ok(None) };
    let all = blocks.into_iter().zip(inodes).zip(tables);
    let place =
        |((block_bitmap, inode_bitmap), inode_table)| GroupPlace { block_bitmap, inode_bitmap, inode_table };
    Ok(Some(all.map(place).collect()))
}

/// Takes runs of blocks in order, around the superblocks and descriptors at the starts of groups.
struct Cursor<'a> {
    layout: &'a Layout,
    at: u64,
    end: u64,
}

impl Cursor<'_> {
    fn take(&mut self, len: u32) -> Result<Option<u64>> {
        loop {
            let end = self.at + u64::from(len);
            if end > self.end {
                return Ok(None);
            }
            let (group, bit) = self.layout.group_of_block(self.at)?;
            let next = self.at - u64::from(bit) + u64::from(self.layout.blocks_per_group());
            if bit < self.layout.group_base_meta(group) {
                self.at += u64::from(self.layout.group_base_meta(group) - bit);
            } else if end > next && self.layout.group_base_meta(group + 1) > 0 {
                self.at = next;
            } else {
                return Ok(Some(std::mem::replace(&mut self.at, end)));
            }
        }
    }
}

/// The blocks that a list of places takes, sorted.
#[derive(Debug, Default)]
pub(super) struct Taken(Vec<Range<u64>>);

impl Taken {
    pub(super) fn new(layout: &Layout, places: &[GroupPlace]) -> Self {
        let mut runs: Vec<Range<u64>> = places.iter().flat_map(|place| place.runs(layout)).collect();
        runs.sort_by_key(|run| run.start);
        Self(runs)
    }

    /// Returns the parts of `within` that are taken, in order.
    pub(super) fn within(&self, within: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let first = self.0.partition_point(|run| run.end <= within.start);
        let runs = self.0.get(first..).unwrap_or_default().iter();
        runs.take_while(move |run| run.start < within.end)
            .map(move |run| run.start.max(within.start)..run.end.min(within.end))
    }
}
