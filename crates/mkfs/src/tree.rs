//! The first inodes and directories: the root, lost+found, and the numbers that are reserved.

use crate::MkfsError;
use crate::plan::Plan;
use lanefs_format::dirent::{DirLayout, Dirent, init_block, init_tail, rec_len, seal, write_entry};
use lanefs_format::{Compat, EXT4_ROOT_INO, FileType, Inode, RoCompat};
use std::ops::Range;

const BAD_INO: u32 = 1;
/// What lost+found is made large for: e2fsck cannot make it larger on a full volume.
const LOST_FOUND_SIZE: u32 = 16 * 1024;

impl Plan {
    /// Makes the root directory with lost+found in it, and uses up the reserved inodes.
    pub(crate) fn make_tree(&mut self, (uid, gid): (u32, u32)) -> Result<(), MkfsError> {
        let lost_found = self.superblock.first_ino();
        let mut root = self.new_inode(EXT4_ROOT_INO, 0o040_755, 3);
        (root.uid, root.gid) = (uid, gid);
        let names = [(EXT4_ROOT_INO, &b"."[..]), (EXT4_ROOT_INO, b".."), (lost_found, b"lost+found")];
        self.make_directory(root, 1, &names)?;

        let block_size = self.layout.block_size();
        let blocks = LOST_FOUND_SIZE.div_ceil(block_size).clamp(2, 12);
        let names = [(lost_found, &b"."[..]), (EXT4_ROOT_INO, b"..")];
        let inode = self.new_inode(lost_found, 0o040_700, 2);
        self.make_directory(inode, blocks, &names)?;

        let mut bad = self.blank_inode(BAD_INO);
        (bad.atime, bad.ctime, bad.mtime) = (self.now, self.now, self.now);
        self.add_inode(bad)?;
        for ino in EXT4_ROOT_INO + 1..lost_found {
            self.add_inode(self.blank_inode(ino))?;
        }
        Ok(())
    }

    /// Returns an inode in use without anything in it, not even the fields beyond the first 128
    /// bytes.
    fn blank_inode(&self, ino: u32) -> Inode {
        let mut inode = Inode::new(ino, 0, &self.ctx);
        inode.xattr_area.resize(inode.xattr_area.len() + usize::from(inode.extra_isize), 0);
        inode.extra_isize = 0;
        inode
    }

    fn make_directory(
        &mut self,
        mut inode: Inode,
        blocks: u32,
        names: &[(u32, &[u8])],
    ) -> Result<(), MkfsError> {
        let goal = self.goal(inode.ino)?;
        let runs = self.map_file(&mut inode, blocks, goal)?;
        let layout = DirLayout {
            block_size: self.layout.block_size() as usize,
            inodes_count: self.layout.inodes_count(),
            checksums: self.superblock.has_ro(RoCompat::METADATA_CSUM),
            file_types: self.superblock.has_in(lanefs_format::Incompat::FILETYPE),
        };
        let seed = inode.seed(&self.csum);
        for (n, block) in runs.into_iter().flat_map(Range::into_iter).enumerate() {
            let mut bytes = self.zero_block();
            init_block(&mut bytes, &layout);
            if n == 0 {
                write_names(&mut bytes, &layout, names)?;
            }
            seal(&mut bytes, &layout, seed);
            self.content.insert(block, bytes);
        }
        self.add_inode(inode)
    }

    /// Returns whether the volume has a feature.
    pub(crate) fn has(&self, feature: Compat) -> bool {
        self.superblock.has(feature)
    }
}

/// Fills a block with entries, the last of which reaches to its end. All name directories.
fn write_names(block: &mut [u8], layout: &DirLayout, names: &[(u32, &[u8])]) -> Result<(), MkfsError> {
    let mut at = 0;
    for (n, (ino, name)) in names.iter().enumerate() {
        let len = if n + 1 == names.len() { layout.end() - at } else { rec_len(name.len()) };
        let file_type = Some(FileType::Directory);
        write_entry(block, layout, &Dirent { offset: at, inode: *ino, rec_len: len, file_type, name })?;
        at += len;
    }
    init_tail(block, layout);
    Ok(())
}
