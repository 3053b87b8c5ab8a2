//! Group descriptors, 32 or 64 bytes and more, and the checksums of the bitmaps they name.
//!
//! Long descriptors split numbers in halves; a short one has only the low ones, and its bitmap
//! checksums are cut at 16 bits. Bytes beyond 64 are kept as they are.

use crate::checksum::{BG_CHECKSUM, Checksummer, ext4_chksum};
use crate::le::{join, put_u16, put_u32, u16_at, u32_at};
use crate::{FormatError, Layout, Result};

bitflags::bitflags! {
    /// `bg_flags`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct GroupFlags: u16 {
        /// The inode table and bitmap have never been written: all inodes are free.
        const INODE_UNINIT = 1;
        /// The block bitmap has never been written: only the group's own metadata is in use.
        const BLOCK_UNINIT = 2;
        /// The inode table is zeroed.
        const INODE_ZEROED = 4;
        const _ = !0;
    }
}

/// A checked group descriptor, with split fields joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GroupDesc {
    /// `bg_block_bitmap`: block number.
    pub block_bitmap: u64,
    /// `bg_inode_bitmap`: block number.
    pub inode_bitmap: u64,
    /// `bg_inode_table`: first block number.
    pub inode_table: u64,
    /// `bg_free_blocks_count`: clusters with `bigalloc`.
    pub free_blocks_count: u32,
    /// `bg_free_inodes_count`.
    pub free_inodes_count: u32,
    /// `bg_used_dirs_count`.
    pub used_dirs_count: u32,
    /// `bg_itable_unused`: inodes at the end of the table that have never been used.
    pub itable_unused: u32,
    /// `bg_flags`.
    pub flags: GroupFlags,
    /// `bg_exclude_bitmap`: of snapshots, kept as it is.
    pub exclude_bitmap: u64,
    /// `bg_block_bitmap_csum`; 16 bits in a short descriptor.
    pub block_bitmap_csum: u32,
    /// `bg_inode_bitmap_csum`; 16 bits in a short descriptor.
    pub inode_bitmap_csum: u32,
}

impl GroupDesc {
    /// Checks the descriptor of `group`: `bytes` start at its place.
    ///
    /// # Errors
    /// A wrong checksum, a bitmap or table outside the volume, counts beyond the group's size.
    pub fn parse(bytes: &[u8], group: u32, layout: &Layout, csum: &Checksummer) -> Result<Self> {
        let need = usize::from(layout.desc_size());
        let Some(b) = bytes.get(..need) else {
            return Err(FormatError::Truncated { what: "group descriptor", len: bytes.len(), need });
        };
        if let Some(expected) = csum.group_desc(group, b) {
            let found = u16_at(b, BG_CHECKSUM);
            if found != expected {
                return Err(FormatError::GroupChecksum { group, found, expected });
            }
        }
        let desc = Self::decode(b);
        desc.check(group, layout)?;
        Ok(desc)
    }

    fn decode(b: &[u8]) -> Self {
        // Beyond a short descriptor every field reads as zero.
        let half = |lo, hi| u32::from(u16_at(b, hi)) << 16 | u32::from(u16_at(b, lo));
        Self {
            block_bitmap: join(u32_at(b, 0x00), u32_at(b, 0x20)),
            inode_bitmap: join(u32_at(b, 0x04), u32_at(b, 0x24)),
            inode_table: join(u32_at(b, 0x08), u32_at(b, 0x28)),
            free_blocks_count: half(0x0C, 0x2C),
            free_inodes_count: half(0x0E, 0x2E),
            used_dirs_count: half(0x10, 0x30),
            flags: GroupFlags::from_bits_retain(u16_at(b, 0x12)),
            exclude_bitmap: join(u32_at(b, 0x14), u32_at(b, 0x34)),
            block_bitmap_csum: half(0x18, 0x38),
            inode_bitmap_csum: half(0x1A, 0x3A),
            itable_unused: half(0x1C, 0x32),
        }
    }

    fn check(&self, group: u32, layout: &Layout) -> Result<()> {
        let (first, end) = (layout.first_data_block(), layout.blocks_count());
        for (field, block, count) in [
            ("bg_block_bitmap", self.block_bitmap, 1),
            ("bg_inode_bitmap", self.inode_bitmap, 1),
            ("bg_inode_table", self.inode_table, layout.inode_table_blocks().into()),
        ] {
            if layout.check_blocks(block, count).is_err() || block <= first {
                return Err(FormatError::GroupBlock { group, field, block, first, end });
            }
        }
        let clusters = layout.group_clusters(group)?;
        let inodes = layout.inodes_per_group();
        for (field, value, max) in [
            ("bg_free_blocks_count", self.free_blocks_count, clusters),
            ("bg_free_inodes_count", self.free_inodes_count, inodes),
            ("bg_used_dirs_count", self.used_dirs_count, inodes),
            ("bg_itable_unused", self.itable_unused, inodes),
        ] {
            if value > max {
                return Err(FormatError::GroupCount { group, field, value, max });
            }
        }
        Ok(())
    }

    /// Writes the descriptor into `bytes`, which start at its place, with the checksum made.
    ///
    /// # Errors
    /// [`FormatError::Truncated`] if `bytes` are fewer than a descriptor.
    pub fn encode(&self, bytes: &mut [u8], group: u32, layout: &Layout, csum: &Checksummer) -> Result<()> {
        let (need, len) = (usize::from(layout.desc_size()), bytes.len());
        let Some(b) = bytes.get_mut(..need) else {
            return Err(FormatError::Truncated { what: "group descriptor", len, need });
        };
        let mut wide = |lo, hi, v: u64| {
            put_u32(b, lo, v as u32);
            put_u32(b, hi, (v >> 32) as u32);
        };
        wide(0x00, 0x20, self.block_bitmap);
        wide(0x04, 0x24, self.inode_bitmap);
        wide(0x08, 0x28, self.inode_table);
        wide(0x14, 0x34, self.exclude_bitmap);
        let mut half = |lo, hi, v: u32| {
            put_u16(b, lo, v as u16);
            put_u16(b, hi, (v >> 16) as u16);
        };
        half(0x0C, 0x2C, self.free_blocks_count);
        half(0x0E, 0x2E, self.free_inodes_count);
        half(0x10, 0x30, self.used_dirs_count);
        half(0x18, 0x38, self.block_bitmap_csum);
        half(0x1A, 0x3A, self.inode_bitmap_csum);
        half(0x1C, 0x32, self.itable_unused);
        put_u16(b, 0x12, self.flags.bits());
        if let Some(sum) = csum.group_desc(group, b) {
            put_u16(b, BG_CHECKSUM, sum);
        }
        Ok(())
    }

    /// Checks the block bitmap of `group` (a block's bytes) against this descriptor.
    ///
    /// # Errors
    /// [`FormatError::BitmapChecksum`], [`FormatError::Truncated`].
    pub fn verify_block_bitmap(&self, map: &[u8], group: u32, l: &Layout, csum: &Checksummer) -> Result<()> {
        let expected = bitmap_csum(map, l.clusters_per_group(), l, csum)?;
        verify("block", group, self.block_bitmap_csum, expected)
    }

    /// Checks the inode bitmap of `group` (a block's bytes) against this descriptor.
    ///
    /// # Errors
    /// The errors of [`verify_block_bitmap`](Self::verify_block_bitmap).
    pub fn verify_inode_bitmap(&self, map: &[u8], group: u32, l: &Layout, csum: &Checksummer) -> Result<()> {
        let expected = bitmap_csum(map, l.inodes_per_group(), l, csum)?;
        verify("inode", group, self.inode_bitmap_csum, expected)
    }

    /// Notes the checksum of a changed block bitmap. The descriptor must then be encoded.
    ///
    /// # Errors
    /// [`FormatError::Truncated`].
    pub fn sum_block_bitmap(&mut self, map: &[u8], l: &Layout, csum: &Checksummer) -> Result<()> {
        if let Some(sum) = bitmap_csum(map, l.clusters_per_group(), l, csum)? {
            self.block_bitmap_csum = sum;
        }
        Ok(())
    }

    /// Notes the checksum of a changed inode bitmap. The descriptor must then be encoded.
    ///
    /// # Errors
    /// [`FormatError::Truncated`].
    pub fn sum_inode_bitmap(&mut self, map: &[u8], l: &Layout, csum: &Checksummer) -> Result<()> {
        if let Some(sum) = bitmap_csum(map, l.inodes_per_group(), l, csum)? {
            self.inode_bitmap_csum = sum;
        }
        Ok(())
    }
}

/// Returns the checksum of the first `bits` bits, cut to what the descriptor can hold.
fn bitmap_csum(map: &[u8], bits: u32, layout: &Layout, csum: &Checksummer) -> Result<Option<u32>> {
    let Some(seed) = csum.fs_seed() else { return Ok(None) };
    let need = (bits / 8) as usize;
    let Some(bytes) = map.get(..need) else {
        return Err(FormatError::Truncated { what: "bitmap", len: map.len(), need });
    };
    let sum = ext4_chksum(seed, bytes);
    Ok(Some(if layout.desc_size() >= 64 { sum } else { sum & 0xFFFF }))
}

fn verify(which: &'static str, group: u32, found: u32, expected: Option<u32>) -> Result<()> {
    match expected {
        Some(expected) if expected != found => {
            Err(FormatError::BitmapChecksum { group, which, found, expected })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
