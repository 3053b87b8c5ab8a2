//! The resize inode, which owns the blocks that are kept for more descriptors.
//!
//! Its double indirect block names the reserved blocks of the first copy, each at the place that it
//! will have among the blocks of descriptors (modulo the entries of a block). Each of these is an
//! indirect block that names the blocks in the same place of every backup, in the order of groups.

use super::source::MetadataSource;
use crate::error::{Corrupt, Error, Result};
use lanefs_format::{EXT4_RESIZE_INO, Inode, Layout, Superblock};
use std::collections::BTreeMap;
use std::ops::Range;

/// The pointer of `i_block` to the double indirect block.
const DIND: usize = 13;

/// The resize inode of a volume before a step.
#[derive(Debug)]
pub(super) struct Reserve {
    before: Layout,
    inode: Inode,
    /// Its block of the inode table, and the first byte there.
    slot: (u64, usize),
    table_block: Vec<u8>,
    dind: u64,
}

impl Reserve {
    /// Reads and checks the resize inode, whose slot is in the inode table at block `table`.
    ///
    /// # Errors
    /// An inode that is damaged or does not own the reserved blocks; the device's.
    pub(super) fn read(source: &dyn MetadataSource, sb: &Superblock, table: u64) -> Result<Self> {
        let before = sb.layout();
        let place = before.inode_slot(EXT4_RESIZE_INO)?;
        let slot = (table + u64::from(place.table_block), place.offset as usize);
        let table_block = source.read(slot.0)?;
        let bytes = table_block.get(slot.1..).unwrap_or_default();
        let inode = Inode::parse(bytes, EXT4_RESIZE_INO, &sb.inode_context())?;
        let dind = u64::from(word(&inode.i_block, DIND));
        before.check_blocks(dind, 1).map_err(|_| damaged("has no double indirect block"))?;
        let top = source.read(dind)?;
        let entries = before.block_size() as usize / 4;
        for (n, block) in reserved(&before)? {
            if u64::from(word(&top, n as usize % entries)) != block {
                return Err(damaged("does not name the reserved blocks behind the descriptors"));
            }
        }
        Ok(Self { before, inode, slot, table_block, dind })
    }

    /// Returns the double indirect block.
    pub(super) fn top(&self) -> u64 {
        self.dind
    }

    /// Logs the inode and its map for the shape of `sb`.
    ///
    /// # Errors
    /// More backups than an indirect block has room for.
    pub(super) fn resized(mut self, sb: &Superblock, logged: &mut BTreeMap<u64, Vec<u8>>) -> Result<()> {
        let layout = sb.layout();
        let (old, new) = (backups(&self.before), backups(&layout));
        let old_reserve = reserved(&self.before)?.count();
        let blocks: Vec<(u32, u64)> = reserved(&layout)?.collect();
        if old == new && old_reserve == blocks.len() {
            return Ok(());
        }
        let size = layout.block_size() as usize;
        if new.len() > size / 4 {
            let why = format!("the resize inode has room for {} backups, not {}", size / 4, new.len());
            return Err(Error::NotSupported(why));
        }
        let mut top = vec![0; size];
        for &(n, block) in &blocks {
            put(&mut top, n as usize % (size / 4), block);
            if old != new || n < self.before.desc_blocks() {
                let mut names = vec![0; size];
                for (at, group) in new.iter().enumerate() {
                    put(&mut names, at, block + u64::from(*group) * u64::from(layout.blocks_per_group()));
                }
                logged.insert(block, names);
            }
        }
        logged.insert(self.dind, top);
        let owned = 1 + blocks.len() as u64 * (1 + new.len() as u64);
        self.inode.blocks = owned * u64::from(layout.block_size() / 512);
        let slot = self.table_block.get_mut(self.slot.1..).unwrap_or_default();
        self.inode.encode(slot, &sb.inode_context())?;
        logged.insert(self.slot.0, self.table_block);
        Ok(())
    }

    /// Logs an empty slot in its place. Returns the double indirect block; the reserved blocks are
    /// free with the new shape.
    pub(super) fn removed(mut self, logged: &mut BTreeMap<u64, Vec<u8>>) -> Range<u64> {
        let size = usize::from(self.before.inode_size());
        if let Some(slot) = self.table_block.get_mut(self.slot.1..self.slot.1 + size) {
            slot.fill(0);
        }
        logged.insert(self.slot.0, self.table_block);
        self.dind..self.dind + 1
    }
}

/// Returns the reserved blocks of the first copy, each with its place among the blocks of
/// descriptors.
fn reserved(layout: &Layout) -> Result<impl Iterator<Item = (u32, u64)> + use<>> {
    let (used, first) = (layout.desc_blocks(), layout.desc_block(0)?);
    let all = used..used + layout.group_reserved_gdt(0);
    Ok(all.map(move |n| (n, first + u64::from(n))))
}

/// Returns the groups with a backup.
fn backups(layout: &Layout) -> Vec<u32> {
    (1..layout.group_count()).filter(|&group| layout.has_super(group)).collect()
}

fn damaged(rule: &'static str) -> Error {
    Corrupt::SpecialInode { ino: EXT4_RESIZE_INO, role: "resize inode", rule }.into()
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.as_chunks::<4>().0.get(at).map_or(0, |word| u32::from_le_bytes(*word))
}

/// Sets a word of an indirect block. Volumes with a resize inode have block numbers of 32 bits.
fn put(bytes: &mut [u8], at: usize, block: u64) {
    if let Some(word) = bytes.as_chunks_mut::<4>().0.get_mut(at) {
        *word = (block as u32).to_le_bytes();
    }
}
