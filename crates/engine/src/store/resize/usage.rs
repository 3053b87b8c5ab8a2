//! The owners of blocks: which file or structure has each block of a volume.
//!
//! All maps are read once, and checked against bitmaps and fixed structures: a run that its bitmap
//! has as free, that lies in fixed structures or in the log, or that two files have, is damage. So
//! is a bitmap that has fixed structures as free. Of runs before a bound nothing is kept.

use super::Resizing;
use super::maps::{MapWalk, Visitor};
use crate::error::{Corrupt, ResizeError, Result};
use lanefs_format::{EXT4_RESIZE_INO, Inode, InodeUse, bitmap};
use std::collections::BTreeMap;
use std::ops::Range;

/// Runs of free blocks: the first block of each, with the length.
pub(super) type FreeRuns = BTreeMap<u64, u64>;

/// The inodes whose attributes lie in a block.
pub(super) type Sharers = BTreeMap<u64, Vec<u32>>;

/// The content of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Holds {
    /// Content of a file: the only runs of more than one block.
    Content,
    /// A block of a file's map.
    Node,
    /// A block of attributes.
    Attributes,
}

/// A run of a file; of blocks of attributes `ino` is 0.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    pub(super) holds: Holds,
    pub(super) start: u64,
    pub(super) len: u32,
    pub(super) ino: u32,
}

impl Run {
    pub(super) fn end(&self) -> u64 {
        self.start + u64::from(self.len)
    }
}

/// The extents and blocks of a map.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MapSize {
    pub(super) extents: usize,
    pub(super) nodes: usize,
}

/// The runs behind a bound, and the free blocks of the volume.
#[derive(Debug)]
pub(super) struct Usage {
    pub(super) free: FreeRuns,
    /// Content first, the longest runs before all others.
    pub(super) runs: Vec<Run>,
    /// The files of these runs.
    pub(super) files: BTreeMap<u32, MapSize>,
    pub(super) xattrs: Sharers,
    /// The blocks of the log's map.
    pub(super) log_nodes: Vec<u64>,
    /// Inodes in use, by group.
    pub(super) inodes: Vec<u32>,
    /// The double indirect block of the resize inode.
    top_of_reserve: Option<u64>,
    /// The last block in use that no file owns.
    stray: Option<u64>,
}

impl Usage {
    /// Reads all maps. Keeps the runs that reach behind `from`.
    ///
    /// # Errors
    /// A damaged volume; the device's.
    pub(super) fn read(volume: &Resizing, from: u64) -> Result<Self> {
        let (sb, device) = (&volume.superblock, &volume.device);
        let (ctx, layout) = (sb.inode_context(), sb.layout());
        let free = free_runs(volume)?;
        // No block belongs to two files: together they have no more than the bitmaps have in use.
        let mut left = sb.blocks_count().saturating_sub(free.values().sum());
        let mut found = RunCollector { from, ..RunCollector::new(volume, &free) };
        let top_of_reserve = volume.top_of_reserve()?;
        if let Some(block) = top_of_reserve {
            found.check(block, 1)?;
        }
        let (mut files, mut xattrs) = (BTreeMap::new(), Sharers::new());
        let inodes = each_inode(volume, |mut inode| {
            let (before, ino, blocks) = (found.runs.len(), inode.ino, sb.blocks_count());
            (found.ino, found.size) = (ino, MapSize::default());
            found.is_log = ino == sb.raw().s_journal_inum.get();
            MapWalk { device, ctx: &ctx, ino, blocks, left: &mut left, visitor: &mut found }
                .file(&mut inode)?;
            if found.runs.len() > before {
                files.insert(ino, found.size);
            }
            if inode.file_acl != 0 {
                found.is_log = false;
                found.check(inode.file_acl, 1)?;
            }
            if inode.file_acl >= from {
                xattrs.entry(inode.file_acl).or_insert_with(Vec::new).push(ino);
            }
            Ok(())
        })?;
        let RunCollector { mut runs, log_nodes, .. } = found;
        let holds = Holds::Attributes;
        runs.extend(xattrs.keys().map(|&start| Run { holds, start, len: 1, ino: 0 }));
        runs.sort_unstable_by_key(|run| run.start);
        if let Some((_, second)) = runs.iter().zip(runs.iter().skip(1)).find(|(a, b)| a.end() > b.start) {
            let (block, group) = (second.start, layout.group_of_block(second.start)?.0);
            return Err(Corrupt::DoubleUse { block, group }.into());
        }
        let log = volume.log.iter().flat_map(|log| &log.runs);
        let log = log.map(|run| run.physical..run.physical + u64::from(run.len));
        let nodes = log_nodes.iter().map(|&block| block..block + 1);
        let mut owned: Vec<Range<u64>> = runs.iter().map(|run| run.start..run.end()).collect();
        owned.extend(log.chain(nodes).chain(top_of_reserve.map(|block| block..block + 1)));
        owned.sort_unstable_by_key(|run| run.start);
        let stray = volume.last_stray(from, &owned)?;
        runs.sort_unstable_by_key(|run| (run.holds, std::cmp::Reverse(run.len), run.start));
        Ok(Self { free, runs, files, xattrs, log_nodes, inodes, top_of_reserve, stray })
    }

    /// Checks that all behind `end` can move.
    ///
    /// # Errors
    /// [`ResizeError::Immovable`].
    pub(super) fn check(&self, volume: &Resizing, end: u64) -> Result<()> {
        let orphans = volume.superblock.raw().s_orphan_file_inum.get();
        let own = self.runs.iter().find(|run| run.ino == orphans && run.ino != 0 && run.end() > end);
        let found = [
            ("the orphan file", own.map(|run| run.start)),
            ("a block of the resize inode", self.top_of_reserve),
            (self.stray.map_or("", |block| volume.stray(block)), self.stray),
        ];
        match found.into_iter().find_map(|(what, block)| Some((what, block.filter(|&at| at >= end)?))) {
            Some((what, block)) => Err(ResizeError::Immovable { blocks: end, what, block }.into()),
            None => Ok(()),
        }
    }
}

/// Collects the runs of files behind the bound, and checks all runs of files.
struct RunCollector<'a> {
    volume: &'a Resizing,
    free: &'a FreeRuns,
    from: u64,
    /// The file, and the size of its map so far.
    ino: u32,
    size: MapSize,
    is_log: bool,
    runs: Vec<Run>,
    log_nodes: Vec<u64>,
}

impl<'a> RunCollector<'a> {
    fn new(volume: &'a Resizing, free: &'a FreeRuns) -> Self {
        let (runs, log_nodes) = (Vec::new(), Vec::new());
        let size = MapSize::default();
        Self { volume, free, from: 0, ino: 0, size, is_log: false, runs, log_nodes }
    }

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

    fn keep(&mut self, holds: Holds, start: u64, len: u32) -> Result<()> {
        self.check(start, len)?;
        let run = Run { holds, start, len, ino: self.ino };
        if run.end() > self.from && !self.is_log {
            self.runs.push(run);
        }
        Ok(())
    }
}

impl Visitor for RunCollector<'_> {
    fn data(&mut self, start: u64, len: u32, _unwritten: bool) -> Result<u64> {
        self.size.extents += 1;
        self.keep(Holds::Content, start, len).map(|()| start)
    }

    fn node(&mut self, block: u64) -> Result<u64> {
        self.size.nodes += 1;
        if self.is_log {
            self.log_nodes.push(block);
        }
        self.keep(Holds::Node, block, 1).map(|()| block)
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

/// Calls `f` with each inode in use, and returns how many numbers each group has in use.
///
/// # Errors
/// [`Corrupt::UnusedInodes`]: inodes that no bitmap has may be in use. Other damage; those of `f`;
/// the device's.
pub(super) fn each_inode(volume: &Resizing, mut f: impl FnMut(Inode) -> Result<()>) -> Result<Vec<u32>> {
    let (sb, device) = (&volume.superblock, &volume.device);
    let (layout, ctx) = (sb.layout(), sb.inode_context());
    let size = usize::from(layout.inode_size());
    let mut used = Vec::new();
    for (group, desc) in (0..).zip(&volume.groups) {
        volume.slots(&layout, group).check_counts(group)?;
        let map = volume.inode_bitmap_of(group)?.unwrap_or_default();
        let per_group = if map.is_empty() { 0 } else { layout.inodes_per_group() as usize };
        used.push(bitmap::count_set(&map, 0..per_group) as u32);
        let mut held: (u64, Vec<u8>) = (0, Vec::new());
        let mut index = 0;
        while let Some(bit) = bitmap::next_set(&map, index..per_group) {
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
    Ok(used)
}
