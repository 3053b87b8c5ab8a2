//! The group descriptors, and the blocks that fixed metadata takes.

use crate::finding::Structure;
use crate::rule::Rule;
use crate::{Check, CheckError};
use lanefs_format::{GroupDesc, GroupFlags, Incompat, RoCompat};
use std::iter::once;

impl Check {
    /// Reads all descriptors and claims the blocks of fixed metadata.
    pub(crate) fn check_groups(&mut self) -> Result<(), CheckError> {
        let per_block = self.layout.descs_per_block();
        for n in 0..self.layout.desc_blocks() {
            let block = match self.layout.desc_block(n) {
                Ok(block) => block,
                Err(e) => {
                    self.findings.add(Structure::Superblock, e);
                    return Ok(());
                }
            };
            let bytes = self.io.block(block)?;
            let first = n * per_block;
            for group in first..(first + per_block).min(self.layout.group_count()) {
                let at = (group - first) as usize * usize::from(self.layout.desc_size());
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
