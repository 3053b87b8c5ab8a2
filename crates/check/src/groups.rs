//! The group descriptors, and the blocks that fixed metadata takes.

use crate::finding::Structure;
use crate::rule::Rule;
use crate::{Check, CheckError};
use lanefs_format::{GroupDesc, GroupFlags, Incompat, Layout, RoCompat};
use std::iter::once;
use std::ops::Range;

impl Check {
    /// Reads all descriptors and claims the blocks of fixed metadata.
    pub(crate) fn check_groups(&mut self) -> Result<(), CheckError> {
        for n in 0..self.layout.desc_blocks() {
            let block = match self.layout.desc_block(n) {
                Ok(block) => block,
                Err(e) => {
                    self.findings.add(Structure::Superblock, e);
                    return Ok(());
                }
            };
            let bytes = self.io.block(block)?;
            let places = (0..).step_by(self.layout.desc_size().into());
            for (group, at) in groups_of_block(&self.layout, n).zip(places) {
                if let Some(desc) = self.check_descriptor(group, bytes.get(at..).unwrap_or_default()) {
                    self.groups.insert(group, desc);
                }
            }
        }
        // Superblocks and descriptors first: their places are not read from the volume. Only those
        // of groups with a descriptor: what a volume claims alone takes no memory.
        let groups: Vec<u32> =
            once(0).chain(self.groups.keys().copied().filter(|group| *group > 0)).collect();
        for &group in &groups {
            let first =
                self.layout.first_data_block() + u64::from(group) * u64::from(self.layout.blocks_per_group());
            let len = u64::from(self.layout.group_base_meta(group));
            let len = len.min(self.layout.blocks_count() - first);
            // A volume whose block 0 is left over has the first superblock in block 1.
            self.blocks.claim(first, len);
        }
        for group in groups {
            self.claim_tables(group);
        }
        if self.sb.has_in(Incompat::MMP) {
            let block = self.sb.raw().s_mmp_block.get();
            if self.layout.check_blocks(block, 1).is_ok() {
                self.blocks.claim(block, 1);
            }
        }
        Ok(())
    }

    fn check_descriptor(&mut self, group: u32, bytes: &[u8]) -> Option<GroupDesc> {
        let structure = Structure::GroupDescriptor { group };
        let desc = match GroupDesc::parse(bytes, group, &self.layout, &self.csum) {
            Ok(desc) => desc,
            Err(e) => {
                self.findings.add(structure, e);
                return None;
            }
        };
        let uninit = GroupFlags::BLOCK_UNINIT | GroupFlags::INODE_UNINIT;
        if !self.has_uninit() && (desc.flags.intersects(uninit) || desc.itable_unused != 0) {
            self.findings.add(structure, Rule::UninitWithoutChecksum);
        }
        if !self.sb.has_in(Incompat::FLEX_BG) {
            let first = self.layout.group_first_block(group).unwrap_or(0);
            let end = first + u64::from(self.layout.group_blocks(group).unwrap_or(0));
            for (field, block, len) in self.tables(&desc) {
                if block < first || block + len > end {
                    self.findings.add(structure, Rule::OutsideGroup { field, block, first, end });
                }
            }
        }
        Some(desc)
    }

    /// Returns whether descriptors can say that something was never written.
    pub(crate) fn has_uninit(&self) -> bool {
        self.sb.has_ro(RoCompat::METADATA_CSUM) || self.sb.has_ro(RoCompat::GDT_CSUM)
    }

    /// Returns the runs of blocks that a descriptor names.
    pub(crate) fn tables(&self, desc: &GroupDesc) -> [(&'static str, u64, u64); 3] {
        [
            ("bg_block_bitmap", desc.block_bitmap, 1),
            ("bg_inode_bitmap", desc.inode_bitmap, 1),
            ("bg_inode_table", desc.inode_table, self.layout.inode_table_blocks().into()),
        ]
    }

    fn claim_tables(&mut self, group: u32) {
        let Some(desc) = self.groups.get(&group).copied() else { return };
        for (field, block, len) in self.tables(&desc) {
            if let Some(conflict) = self.claim_meta(block, len) {
                let rule = Rule::MetadataOverlap { field, block: conflict };
                self.findings.add(Structure::GroupDescriptor { group }, rule);
            }
        }
    }

    /// Claims blocks of fixed metadata, several of which may lie in one cluster. Returns a block
    /// that was claimed before.
    fn claim_meta(&mut self, block: u64, len: u64) -> Option<u64> {
        let conflict = self.blocks.claim(block, len)?;
        (self.layout.cluster_bits() == 0).then_some(conflict.block)
    }
}

/// Returns the groups whose descriptors are in block `n` of those blocks, which exists.
fn groups_of_block(layout: &Layout, n: u32) -> Range<u32> {
    let first = n * layout.descs_per_block();
    first..first.saturating_add(layout.descs_per_block()).min(layout.group_count())
}

#[cfg(test)]
mod tests {
    use super::*;
    use lanefs_device::{BlockDevice, MemDevice};
    use lanefs_format::Superblock;

    /// The layout of a volume with as many groups as have numbers.
    fn largest() -> Layout {
        let device = MemDevice::new(16 << 20);
        let options = lanefs_mkfs::Options { block_size: Some(1024), ..Default::default() };
        lanefs_mkfs::format(&device, &options).unwrap();
        let mut bytes = [0; 1024];
        device.read_at(&mut bytes, 1024).unwrap();
        let mut raw = Superblock::parse(&bytes).unwrap().raw().clone();
        let blocks = 8 * u64::from(u32::MAX) + 1;
        (raw.s_blocks_count_lo, raw.s_blocks_count_hi) =
            ((blocks as u32).into(), ((blocks >> 32) as u32).into());
        (raw.s_blocks_per_group, raw.s_clusters_per_group) = (8.into(), 8.into());
        (raw.s_inodes_per_group, raw.s_inodes_count) = (1.into(), u32::MAX.into());
        raw.s_inode_size = 1024.into();
        Superblock::from_raw(raw).unwrap().layout()
    }

    #[test]
    fn the_last_groups_have_the_last_descriptors() {
        let layout = largest();
        assert_eq!((layout.group_count(), layout.descs_per_block()), (u32::MAX, 16));
        let last = layout.desc_blocks() - 1;
        assert_eq!(groups_of_block(&layout, last - 1), u32::MAX - 31..u32::MAX - 15);
        assert_eq!(groups_of_block(&layout, last), u32::MAX - 15..u32::MAX);
    }
}
