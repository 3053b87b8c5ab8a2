//! The geometry of a volume: groups, their blocks, the copies of superblock and descriptors,
//! inodes.
//!
//! A [`Layout`] is computed from a checked superblock and holds only numbers. Its methods check the
//! block and inode numbers given to them, which may come from a damaged volume.

use crate::{Compat, FormatError, Incompat, Result, RoCompat, Superblock};

/// The numbers of a volume's layout. Cheap to copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    block_size: u32,
    blocks_count: u64,
    first_data_block: u32,
    blocks_per_group: u32,
    cluster_bits: u32,
    inodes_per_group: u32,
    inodes_count: u32,
    inode_size: u16,
    desc_size: u16,
    group_count: u32,
    log_flex: u8,
    reserved_gdt_blocks: u16,
    sparse_super: bool,
    backup_bgs: Option<[u32; 2]>,
    first_meta_bg: u32,
    super_block: u64,
}

/// The place of an inode: group, index in it, and where in the group's inode table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InodeSlot {
    /// The group.
    pub group: u32,
    /// Index in the group, from 0: the bit of the inode bitmap.
    pub index: u32,
    /// Block of the inode table, counted from `bg_inode_table`.
    pub table_block: u32,
    /// Byte in that block.
    pub offset: u32,
}

impl Layout {
    pub(crate) fn new(sb: &Superblock) -> Self {
        let raw = sb.raw();
        let first = raw.s_first_data_block.get();
        let per_group = raw.s_blocks_per_group.get();
        // The checks of the superblock hold this to what fits in 32 bits.
        let group_count = (sb.blocks_count() - u64::from(first)).div_ceil(per_group.into()) as u32;
        let flex = sb.has_in(Incompat::FLEX_BG);
        Self {
            block_size: sb.block_size(),
            blocks_count: sb.blocks_count(),
            first_data_block: first,
            blocks_per_group: per_group,
            cluster_bits: raw.s_log_cluster_size.get() - raw.s_log_block_size.get(),
            inodes_per_group: raw.s_inodes_per_group.get(),
            inodes_count: sb.inodes_count(),
            inode_size: sb.inode_size(),
            desc_size: sb.desc_size(),
            group_count,
            log_flex: if flex { raw.s_log_groups_per_flex } else { 0 },
            reserved_gdt_blocks: raw.s_reserved_gdt_blocks.get(),
            sparse_super: sb.has_ro(RoCompat::SPARSE_SUPER),
            backup_bgs: sb.has(Compat::SPARSE_SUPER2).then(|| raw.s_backup_bgs.map(|g| g.get())),
            first_meta_bg: match sb.has_in(Incompat::META_BG) {
                true => raw.s_first_meta_bg.get(),
                false => u32::MAX,
            },
            super_block: u64::from(sb.block_size() == 1024),
        }
    }

    /// Returns the number of bytes in a block.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Returns the number of blocks of the volume; block numbers are below it.
    pub fn blocks_count(&self) -> u64 {
        self.blocks_count
    }

    /// Returns the first block of group 0.
    pub fn first_data_block(&self) -> u64 {
        self.first_data_block.into()
    }

    /// Returns the number of blocks in every group but the last.
    pub fn blocks_per_group(&self) -> u32 {
        self.blocks_per_group
    }

    /// Clusters in a group but the last: the bits of a block bitmap.
    pub fn clusters_per_group(&self) -> u32 {
        self.blocks_per_group >> self.cluster_bits
    }

    /// Returns the blocks of so many clusters. Counts of free blocks in descriptors, and
    /// `s_overhead_clusters`, are clusters.
    pub fn blocks_of(&self, clusters: u64) -> u64 {
        clusters.saturating_mul(1 << self.cluster_bits)
    }

    /// Returns log2 of the blocks in a cluster: 0 without `bigalloc`.
    pub fn cluster_bits(&self) -> u32 {
        self.cluster_bits
    }

    /// Returns the number of inodes in every group.
    pub fn inodes_per_group(&self) -> u32 {
        self.inodes_per_group
    }

    /// Returns the number of inodes of the volume.
    pub fn inodes_count(&self) -> u32 {
        self.inodes_count
    }

    /// Returns the number of bytes in an inode.
    pub fn inode_size(&self) -> u16 {
        self.inode_size
    }

    /// Returns the number of bytes in a group descriptor.
    pub fn desc_size(&self) -> u16 {
        self.desc_size
    }

    /// Returns the number of groups of the volume.
    pub fn group_count(&self) -> u32 {
        self.group_count
    }

    /// Returns the number of blocks of a group's inode table.
    pub fn inode_table_blocks(&self) -> u32 {
        self.inodes_per_group.div_ceil(self.inodes_per_block())
    }

    /// Returns the number of inodes in a block.
    pub fn inodes_per_block(&self) -> u32 {
        self.block_size / u32::from(self.inode_size)
    }

    /// Returns how many groups keep their bitmaps and inode tables together: 1 without `flex_bg`.
    pub fn groups_per_flex(&self) -> u32 {
        1 << self.log_flex
    }

    /// Checks that there is such a group.
    ///
    /// # Errors
    /// [`FormatError::GroupRange`].
    pub fn check_group(&self, group: u32) -> Result<()> {
        if group >= self.group_count {
            return Err(FormatError::GroupRange { group, count: self.group_count });
        }
        Ok(())
    }

    /// Returns the first block of a group.
    ///
    /// # Errors
    /// [`FormatError::GroupRange`].
    pub fn group_first_block(&self, group: u32) -> Result<u64> {
        self.check_group(group)?;
        Ok(self.first_block(group))
    }

    fn first_block(&self, group: u32) -> u64 {
        u64::from(group) * u64::from(self.blocks_per_group) + u64::from(self.first_data_block)
    }

    /// Returns the number of blocks in a group; the last may be short.
    ///
    /// # Errors
    /// [`FormatError::GroupRange`].
    pub fn group_blocks(&self, group: u32) -> Result<u32> {
        let left = self.blocks_count - self.group_first_block(group)?;
        Ok(left.min(self.blocks_per_group.into()) as u32)
    }

    /// Clusters in a group: the bits of its block bitmap that mean something.
    ///
    /// # Errors
    /// [`FormatError::GroupRange`].
    pub fn group_clusters(&self, group: u32) -> Result<u32> {
        Ok(self.group_blocks(group)?.div_ceil(1 << self.cluster_bits))
    }

    /// Checks that `count` blocks from `block` on lie inside the volume.
    ///
    /// # Errors
    /// [`FormatError::BlockRange`].
    pub fn check_blocks(&self, block: u64, count: u64) -> Result<()> {
        let first = self.first_data_block();
        match block.checked_add(count) {
            Some(end) if block >= first && end <= self.blocks_count => Ok(()),
            _ => Err(FormatError::BlockRange { block, count, first, end: self.blocks_count }),
        }
    }

    /// Returns the group that a block is in, and its place there, both from 0.
    ///
    /// # Errors
    /// [`FormatError::BlockRange`].
    pub fn group_of_block(&self, block: u64) -> Result<(u32, u32)> {
        self.check_blocks(block, 1)?;
        let at = block - self.first_data_block();
        let per_group = u64::from(self.blocks_per_group);
        Ok(((at / per_group) as u32, (at % per_group) as u32))
    }

    /// Returns the place of an inode; numbers start at 1.
    ///
    /// # Errors
    /// [`FormatError::InodeRange`].
    pub fn inode_slot(&self, ino: u32) -> Result<InodeSlot> {
        if ino == 0 || ino > self.inodes_count {
            return Err(FormatError::InodeRange { ino, max: self.inodes_count });
        }
        let (group, index) = ((ino - 1) / self.inodes_per_group, (ino - 1) % self.inodes_per_group);
        let per_block = self.inodes_per_block();
        Ok(InodeSlot {
            group,
            index,
            table_block: index / per_block,
            offset: index % per_block * u32::from(self.inode_size),
        })
    }

    /// Returns the number of the inode at `index` of `group`.
    ///
    /// # Errors
    /// [`FormatError::GroupRange`], [`FormatError::InodeRange`].
    pub fn ino(&self, group: u32, index: u32) -> Result<u32> {
        self.check_group(group)?;
        if index >= self.inodes_per_group {
            return Err(FormatError::InodeRange { ino: index, max: self.inodes_per_group });
        }
        Ok(group * self.inodes_per_group + index + 1)
    }

    /// Returns whether the group holds the superblock or a copy of it.
    pub fn has_super(&self, group: u32) -> bool {
        if group == 0 {
            return true;
        }
        if let Some(backups) = self.backup_bgs {
            return backups.contains(&group);
        }
        group == 1 || !self.sparse_super || [3, 5, 7].iter().any(|&base| is_power(group, base))
    }

    /// Descriptors in a block.
    pub fn descs_per_block(&self) -> u32 {
        self.block_size / u32::from(self.desc_size)
    }

    /// Returns how many blocks the descriptors of all groups take.
    pub fn desc_blocks(&self) -> u32 {
        self.group_count.div_ceil(self.descs_per_block())
    }

    /// Returns how many blocks of descriptors `group` holds, be they the first copy or a backup.
    pub fn group_desc_blocks(&self, group: u32) -> u32 {
        let per_block = self.descs_per_block();
        if group / per_block >= self.first_meta_bg {
            let at = group % per_block;
            return u32::from(at <= 1 || at == per_block - 1);
        }
        if self.has_super(group) { self.desc_blocks().min(self.first_meta_bg) } else { 0 }
    }

    /// Returns how many blocks `group` keeps free behind its descriptors, for more of them.
    pub fn group_reserved_gdt(&self, group: u32) -> u32 {
        let meta_bg = group / self.descs_per_block() >= self.first_meta_bg;
        if self.has_super(group) && !meta_bg { self.reserved_gdt_blocks.into() } else { 0 }
    }

    /// Returns how many blocks at the start of `group` hold the superblock, descriptors and their
    /// reserve.
    pub fn group_base_meta(&self, group: u32) -> u32 {
        u32::from(self.has_super(group)) + self.group_desc_blocks(group) + self.group_reserved_gdt(group)
    }

    /// Returns the block that a group's descriptor is in, and the byte there.
    ///
    /// # Errors
    /// [`FormatError::GroupRange`].
    pub fn desc_location(&self, group: u32) -> Result<(u64, u32)> {
        self.check_group(group)?;
        let per_block = self.descs_per_block();
        let block = self.desc_block(group / per_block)?;
        Ok((block, group % per_block * u32::from(self.desc_size)))
    }

    /// Returns where the `n`th block of descriptors lies (the first copy).
    ///
    /// # Errors
    /// [`FormatError::GroupRange`], [`FormatError::BlockRange`] if a volume is too small for it.
    pub fn desc_block(&self, n: u32) -> Result<u64> {
        let block = if n < self.first_meta_bg {
            self.super_block + 1 + u64::from(n)
        } else {
            let group = n.saturating_mul(self.descs_per_block());
            self.check_group(group)?;
            self.super_location(group).map_or_else(|| self.first_block(group), |sb| sb + 1)
        };
        self.check_blocks(block, 1)?;
        Ok(block)
    }

    /// Returns the block in which `group` holds the superblock or a copy of it.
    pub fn super_location(&self, group: u32) -> Option<u64> {
        if group >= self.group_count || !self.has_super(group) {
            return None;
        }
        Some(if group == 0 { self.super_block } else { self.first_block(group) })
    }

    /// Counts the groups below `end` that hold the superblock or a copy, without a look at each
    /// group.
    fn supers_below(&self, end: u64) -> u64 {
        let groups = u64::from(self.group_count).min(end);
        if let Some([a, b]) = self.backup_bgs {
            let mut copies = vec![0, a, b];
            copies.sort_unstable();
            copies.dedup();
            return copies.iter().filter(|&&g| u64::from(g) < groups).count() as u64;
        }
        if !self.sparse_super {
            return groups;
        }
        // Powers of different primes never meet but at 1.
        let powers = |base: u64| {
            std::iter::successors(Some(base), move |p| p.checked_mul(base))
                .take_while(|&p| p < groups)
                .count()
        };
        groups.min(2) + [3, 5, 7].map(powers).iter().sum::<usize>() as u64
    }

    /// Counts the blocks that files can never have: superblocks, descriptors and their reserve,
    /// bitmaps and inode tables. `s_overhead_clusters` adds the journal.
    pub fn overhead(&self) -> u64 {
        let groups = u64::from(self.group_count);
        let per_block = u64::from(self.descs_per_block());
        let meta_from = u64::from(self.first_meta_bg).saturating_mul(per_block).min(groups);
        let descs = u64::from(self.desc_blocks().min(self.first_meta_bg));
        let old = self.supers_below(meta_from) * (descs + u64::from(self.reserved_gdt_blocks));
        // A block of descriptors lies in the first, second and last group that it describes.
        let meta_groups = groups - meta_from;
        let meta = meta_groups / per_block * per_block.min(3) + (meta_groups % per_block).min(2);
        let own = groups * (2 + u64::from(self.inode_table_blocks()));
        self.first_data_block() + self.supers_below(groups) + old + meta + own
    }
}

fn is_power(n: u32, base: u32) -> bool {
    let mut power = u64::from(base);
    while power < u64::from(n) {
        power *= u64::from(base);
    }
    power == u64::from(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers() {
        let groups: Vec<u32> = (2..400).filter(|&g| [3, 5, 7].iter().any(|&b| is_power(g, b))).collect();
        assert_eq!(groups, [3, 5, 7, 9, 25, 27, 49, 81, 125, 243, 343]);
        assert!(!is_power(u32::MAX, 3));
    }

    /// The sum over all groups, against the formula.
    #[test]
    fn overhead_is_the_sum_over_all_groups() {
        for sparse in 0..3 {
            for first_meta_bg in [0, 2, u32::MAX] {
                for group_count in [1, 2, 3, 17, 64, 65, 66, 127, 128, 500] {
                    let layout = Layout {
                        block_size: 1024,
                        blocks_count: u64::from(group_count) * 8192 + 1,
                        first_data_block: 1,
                        blocks_per_group: 8192,
                        cluster_bits: 0,
                        inodes_per_group: 64,
                        inodes_count: group_count * 64,
                        inode_size: 256,
                        desc_size: 64,
                        group_count,
                        log_flex: 0,
                        reserved_gdt_blocks: 5,
                        sparse_super: sparse == 1,
                        backup_bgs: (sparse == 2).then_some([1, group_count - 1]),
                        first_meta_bg,
                        super_block: 1,
                    };
                    let sum: u64 =
                        (0..group_count).map(|g| u64::from(layout.group_base_meta(g) + 2 + 16)).sum();
                    assert_eq!(layout.overhead(), sum + 1, "{layout:?}");
                    for group in [0, group_count - 1] {
                        for index in [0, 1, 62, 63] {
                            let slot = layout.inode_slot(layout.ino(group, index).unwrap()).unwrap();
                            assert_eq!((slot.group, slot.index), (group, index));
                        }
                    }
                }
            }
        }
    }
}
