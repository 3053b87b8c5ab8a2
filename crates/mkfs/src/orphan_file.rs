//! The orphan file: empty blocks in which inodes to be deleted will be noted.

use crate::MkfsError;
use crate::plan::Plan;
use lanefs_format::Compat;
use lanefs_format::orphan_file::OrphanFile;

impl Plan {
    /// Makes the orphan file, in the first inode that is free.
    pub(crate) fn make_orphan_file(&mut self) -> Result<(), MkfsError> {
        if !self.has(Compat::ORPHAN_FILE) {
            return Ok(());
        }
        let ino = self.superblock.first_ino() + 1;
        // One block for 4096 of the volume, from 32 to 512.
        let blocks = match self.layout.blocks_count() {
            n if n >= 2 << 20 => 512,
            n => (n / 4096).max(32) as u32,
        };
        let mut inode = self.new_inode(ino, 0o100_600, 1);
        let goal = self.goal(ino)?;
        let runs = self.map_file(&mut inode, blocks, goal)?;
        let file = OrphanFile::new(&inode, &self.csum);
        for block in runs.into_iter().flatten() {
            let mut bytes = self.zero_block();
            file.seal(&mut bytes, block)?;
            self.content.insert(block, bytes);
        }
        self.add_inode(inode)?;
        self.edit_superblock(|raw| raw.s_orphan_file_inum = ino.into())
    }
}
