//! The inode that owns the blocks kept for more descriptors.
//!
//! Its double indirect block names the reserved blocks of the first copy, at the place that each
//! will have among the blocks of descriptors (modulo the entries of a block); each of these is
//! an indirect block that names the blocks in the same place of every other copy.

use crate::MkfsError;
use crate::plan::Plan;
use lanefs_format::{Compat, EXT4_RESIZE_INO, RoCompat};

/// The entry of `i_block` for the double indirect block.
const DIND: usize = 13;

impl Plan {
    /// Makes the resize inode, if the volume has one.
    pub(crate) fn make_resize_inode(&mut self) -> Result<(), MkfsError> {
        if !self.has(Compat::RESIZE_INODE) {
            return Ok(());
        }
        let layout = self.layout;
        let (block_size, per_group) = (layout.block_size(), u64::from(layout.blocks_per_group()));
        let entries = u64::from(block_size / 4);
        let (old, reserved) = (layout.desc_blocks(), layout.group_reserved_gdt(0));
        let mut inode = self.new_inode(EXT4_RESIZE_INO, 0o100_600, 1);
        inode.size = (entries * entries + entries + 12) * u64::from(block_size);

        let goal = u64::from(2 + reserved + old + layout.inode_table_blocks());
        let dind = self.take_block(goal, "the resize inode")?;
        let copies: Vec<u64> =
            (1..layout.group_count()).filter(|&g| layout.has_super(g)).map(u64::from).collect();
        let mut top = self.zero_block();
        let first = layout.desc_block(0)? + u64::from(old);
        for n in 0..reserved {
            let block = first + u64::from(n);
            put(&mut top, u64::from(old + n) % entries, block);
            let mut bytes = self.zero_block();
            for (at, group) in (0..).zip(&copies) {
                put(&mut bytes, at, block + group * per_group);
            }
            self.content.insert(block, bytes);
        }
        self.content.insert(dind, top);
        put(&mut inode.i_block, DIND as u64, dind);
        let blocks = 1 + u64::from(reserved) * (1 + copies.len() as u64);
        inode.blocks = blocks * u64::from(block_size / 512);
        if inode.size > i32::MAX as u64 {
            self.edit_superblock(|raw| {
                let bits = raw.s_feature_ro_compat.get() | RoCompat::LARGE_FILE.bits();
                raw.s_feature_ro_compat = bits.into();
            })?;
        }
        self.replace_inode(inode);
        Ok(())
    }

    /// Gives a reserved inode, which counts as used, its content.
    pub(crate) fn replace_inode(&mut self, inode: lanefs_format::Inode) {
        self.inodes.insert(inode.ino, inode);
    }
}

/// Sets a word of an indirect block. The blocks named lie below 2^32: larger volumes have no
/// resize inode.
fn put(words: &mut [u8], at: u64, block: u64) {
    if let Some(word) = words.as_chunks_mut::<4>().0.get_mut(at as usize) {
        *word = (block as u32).to_le_bytes();
    }
}
