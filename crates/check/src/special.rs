//! Special inodes: the resize inode, the journal's, the quota files.

use crate::finding::Structure;
use crate::io::le32;
use crate::rule::Rule;
use crate::{Check, CheckError};
use lanefs_format::{Compat, EXT4_RESIZE_INO, FileType, Inode, RoCompat};

/// The entry of `i_block` for the double indirect block.
const DIND: usize = 13;

impl Check {
    /// Checks the inodes that the superblock names.
    pub(crate) fn check_special_inodes(&mut self) -> Result<(), CheckError> {
        if self.sb.has(Compat::RESIZE_INODE) {
            self.check_resize_inode()?;
        }
        let raw = self.sb.raw();
        if self.sb.has_ro(RoCompat::QUOTA) {
            for ino in [raw.s_usr_quota_inum.get(), raw.s_grp_quota_inum.get(), raw.s_prj_quota_inum.get()] {
                if ino != 0 {
                    self.check_quota_inode(ino);
                }
            }
        }
        Ok(())
    }

    fn check_quota_inode(&mut self, ino: u32) {
        let note = self.inodes.get(ino);
        if note.file_type == Some(FileType::Regular) && note.links > 0 {
            self.findings.unchecked(Structure::Quota { ino }, "what the file accounts for");
        } else {
            self.findings.add(Structure::Quota { ino }, Rule::SpecialInode { what: "is no file in use" });
        }
    }

    /// Checks the inode that owns the blocks kept for more descriptors. Its double indirect block
    /// names those of the first copy, and each of them the blocks in the same place of the others.
    fn check_resize_inode(&mut self) -> Result<(), CheckError> {
        let Some(inode) = self.read_inode(EXT4_RESIZE_INO)? else { return Ok(()) };
        let (structure, layout) = (Structure::ResizeInode, self.layout);
        let pointer = |i: usize| le32(&inode.i_block, i * 4);
        let others = (0..15).any(|i| i != DIND && pointer(i) != 0);
        let dind = u64::from(pointer(DIND));
        if !inode.is_regular() || inode.links_count == 0 || others || layout.check_blocks(dind, 1).is_err() {
            let what = "its inode is not a file of one double indirect block";
            self.findings.add(structure, Rule::SpecialInode { what });
            return Ok(());
        }
        if let Some(conflict) = self.blocks.claim(dind, 1) {
            let rule = Rule::ClaimedTwice { block: conflict.block, count: conflict.count };
            self.findings.add(structure, rule);
            return Ok(());
        }
        let (old, reserved) = (layout.desc_blocks(), layout.group_reserved_gdt(0));
        let entries = u64::from(layout.block_size() / 4);
        // An indirect block names no more copies than it has entries.
        let copies = (1..layout.group_count()).filter(|&group| layout.has_super(group));
        let copies: Vec<u64> = copies.take(entries as usize).map(u64::from).collect();
        let Ok(first) = layout.desc_block(0).map(|block| block + u64::from(old)) else { return Ok(()) };
        let mut expected = vec![0; entries as usize];
        for n in 0..reserved {
            expected[(u64::from(old + n) % entries) as usize] = first + u64::from(n);
        }
        self.check_entries(dind, &expected)?;
        for block in
            (first..first + u64::from(reserved)).filter(|block| layout.check_blocks(*block, 1).is_ok())
        {
            let mut expected = vec![0; entries as usize];
            for (entry, copy) in expected.iter_mut().zip(&copies) {
                *entry = block + copy * u64::from(layout.blocks_per_group());
            }
            self.check_entries(block, &expected)?;
        }
        let blocks = (1 + u64::from(reserved) * (1 + copies.len() as u64)) << layout.cluster_bits();
        self.check_resize_blocks(&inode, blocks * u64::from(layout.block_size() / 512));
        Ok(())
    }

    fn check_resize_blocks(&mut self, inode: &Inode, counted: u64) {
        if inode.blocks != counted {
            self.findings.add(Structure::ResizeInode, Rule::Blocks { found: inode.blocks, counted });
        }
    }

    /// Checks the pointers of an indirect block of the resize inode.
    fn check_entries(&mut self, block: u64, expected: &[u64]) -> Result<(), CheckError> {
        let bytes = self.io.block(block)?;
        for (entry, &expected) in expected.iter().enumerate() {
            let (found, expected) = (le32(&bytes, entry * 4), expected as u32);
            if found != expected {
                let rule = Rule::ResizeEntry { block, entry: entry as u64, found, expected };
                self.findings.add(Structure::ResizeInode, rule);
                break;
            }
        }
        Ok(())
    }
}
