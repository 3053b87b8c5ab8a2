//! One block group in core: its busy map, and where to look first.

use crate::error::{Corrupt, Result};
use crate::volume::{Fs, kind};
use lanefs_format::{GroupDesc, GroupFlags, bitmap};
use lanefs_journal::Buffer;
use std::ops::Range;

/// In-core state of a group, behind its mutex.
#[derive(Debug, Default)]
pub(crate) struct Group {
    /// Blocks that must not be handed out; `None` until the group is first allocated from.
    busy: Option<Box<[u8]>>,
    /// Clear bits of `busy`.
    free: u32,
    /// Blocks in the group: the last one may be short.
    blocks: u32,
    /// Where the last allocation ended.
    next: u32,
    /// No run of so many blocks is free: saves scans of a fragmented group.
    no_run_of: u32,
    /// No inode below this index is free.
    pub(super) inode_hint: u32,
}

impl Group {
    /// Reads the bitmap from disk into the busy map, once.
    pub(super) fn load(&mut self, fs: &Fs, group: u32) -> Result<()> {
        if self.busy.is_some() {
            return Ok(());
        }
        let desc = read_desc(fs, group)?;
        self.blocks = fs.layout.group_blocks(group)?;
        let map: Box<[u8]> = if uninit(fs, &desc, GroupFlags::BLOCK_UNINIT) {
            initial_block_bitmap(fs, group, &desc)?.into_boxed_slice()
        } else {
            let buffer = read_block_bitmap(fs, group, &desc)?;
            let bytes = buffer.read();
            bytes.to_vec().into_boxed_slice()
        };
        check_own_metadata(fs, group, &desc, &map)?;
        self.free = bitmap::count_zero(&map, 0..self.blocks as usize) as u32;
        self.no_run_of = u32::MAX;
        self.busy = Some(map);
        Ok(())
    }

    /// A run of up to `want` free blocks, at least `least`, searched from `from` (a bit of the
    /// group) to the end and then from the start.
    pub(super) fn find(&mut self, from: u32, want: u32, least: u32) -> Option<Range<u32>> {
        let busy = self.busy.as_mut()?;
        if self.free < least || self.no_run_of <= least {
            return None;
        }
        let (blocks, from) = (self.blocks as usize, from.min(self.blocks) as usize);
        let found = longest_from(busy, from..blocks, want as usize, least as usize)
            .or_else(|| longest_from(busy, 0..blocks, want as usize, least as usize));
        let Some(run) = found else {
            self.no_run_of = least;
            return None;
        };
        Some(run.start as u32..run.end as u32)
    }

    /// Marks a run that was found as busy.
    pub(super) fn mark(&mut self, run: Range<u32>) {
        let Some(busy) = self.busy.as_mut() else { return };
        if bitmap::set(busy, run.start as usize..run.end as usize).is_ok() {
            self.free = self.free.saturating_sub(run.len() as u32);
            self.next = run.end;
        }
    }

    /// Where to search when the caller has no goal in this group.
    pub(super) fn next(&self) -> u32 {
        self.next
    }

    /// Gives blocks back. A group that was never loaded has nothing to correct.
    pub(super) fn release(&mut self, bit: u32, len: u32) {
        let Some(busy) = self.busy.as_mut() else { return };
        let range = bit as usize..(bit as usize + len as usize).min(self.blocks as usize);
        let cleared = bitmap::count_set(busy, range.clone()) as u32;
        if bitmap::clear(busy, range).is_ok() {
            self.free += cleared;
            self.no_run_of = u32::MAX;
            self.next = self.next.min(bit);
        }
    }
}

/// The first run of `least..=want` clear bits in `range`; a run is cut at `want`.
fn longest_from(map: &[u8], range: Range<usize>, want: usize, least: usize) -> Option<Range<usize>> {
    let mut at = range.start;
    while let Some(run) = bitmap::next_run(map, at..range.end, want) {
        if run.len() >= least {
            return Some(run);
        }
        at = run.end;
    }
    None
}

/// Whether `flag` says that a bitmap was never written. The flags count only with checksums.
pub(super) fn uninit(fs: &Fs, desc: &GroupDesc, flag: GroupFlags) -> bool {
    fs.has_group_checksums() && desc.flags.contains(flag)
}

/// The descriptor of `group`, checked.
pub(crate) fn read_desc(fs: &Fs, group: u32) -> Result<GroupDesc> {
    let (block, offset) = fs.layout.desc_location(group)?;
    let buffer = fs.journal.read(block)?;
    let bytes = buffer.read();
    fs.parse_desc(group, bytes.get(offset as usize..).unwrap_or_default())
}

/// The block bitmap of `group`, its checksum verified once after each load.
pub(super) fn read_block_bitmap(fs: &Fs, group: u32, desc: &GroupDesc) -> Result<Buffer> {
    let buffer = fs.journal.read(desc.block_bitmap)?;
    if !buffer.verified(kind::BLOCK_BITMAP) {
        desc.verify_block_bitmap(&buffer.read(), group, &fs.layout, &fs.checksummer)?;
        buffer.set_verified(kind::BLOCK_BITMAP);
    }
    Ok(buffer)
}

/// The bitmap of a group that has only its own metadata in use: superblock and descriptor
/// copies, its bitmaps and inode table where they lie inside it, and the bits past its end.
pub(super) fn initial_block_bitmap(fs: &Fs, group: u32, desc: &GroupDesc) -> Result<Vec<u8>> {
    let mut map = vec![0u8; fs.block_size as usize];
    for range in own_metadata(fs, group, desc)? {
        bitmap::set(&mut map, range)?;
    }
    let blocks = fs.layout.group_blocks(group)? as usize;
    bitmap::set(&mut map, blocks..fs.block_size as usize * 8)?;
    Ok(map)
}

/// The blocks of `group`, as bits, that its own metadata takes.
fn own_metadata(fs: &Fs, group: u32, desc: &GroupDesc) -> Result<Vec<Range<usize>>> {
    let first = fs.layout.group_first_block(group)?;
    let blocks = u64::from(fs.layout.group_blocks(group)?);
    let base = u64::from(fs.layout.group_base_meta(group));
    let table = (desc.inode_table, u64::from(fs.layout.inode_table_blocks()));
    let parts = [(first, base), (desc.block_bitmap, 1), (desc.inode_bitmap, 1), table];
    let clip = |block: u64| (block.clamp(first, first + blocks) - first) as usize;
    Ok(parts
        .iter()
        .map(|&(start, len)| clip(start)..clip(start.saturating_add(len)))
        .filter(|r| !r.is_empty())
        .collect())
}

/// A bitmap that has the group's own metadata as free would have us overwrite it.
fn check_own_metadata(fs: &Fs, group: u32, desc: &GroupDesc, map: &[u8]) -> Result<()> {
    let first = fs.layout.group_first_block(group)?;
    for range in own_metadata(fs, group, desc)? {
        if let Some(bit) = bitmap::next_zero(map, range) {
            return Err(Corrupt::BitmapMissesMetadata { group, block: first + bit as u64 }.into());
        }
    }
    Ok(())
}
