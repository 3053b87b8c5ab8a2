//! Blocks of the orphan file: inode numbers, 0 for a free place, and a tail with a checksum.
//!
//! The checksum is made with the orphan file's inode and the block's own number on the volume.

use crate::checksum::{Checksummer, ext4_chksum};
use crate::le::{put_u32, u32_at};
use crate::{FormatError, Inode, Result};

/// `ob_magic`.
const EXT4_ORPHAN_BLOCK_MAGIC: u32 = 0x0B10_CA04;
const TAIL: usize = 8;

/// The orphan file that a block belongs to: what its checksums are made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrphanFile {
    seed: Option<u32>,
}

impl OrphanFile {
    /// Returns the file of `inode`.
    pub fn new(inode: &Inode, csum: &Checksummer) -> Self {
        Self { seed: inode.seed(csum) }
    }

    /// Returns how many inode numbers fit in a block of `block_size` bytes.
    pub fn entries_per_block(block_size: u32) -> u32 {
        block_size.saturating_sub(TAIL as u32) / 4
    }

    /// Checks magic and checksum of the block at `block` on the volume.
    ///
    /// # Errors
    /// [`FormatError::OrphanMagic`], [`FormatError::OrphanChecksum`], [`FormatError::Truncated`].
    pub fn verify(&self, bytes: &[u8], block: u64) -> Result<()> {
        let at = tail(bytes)?;
        let found = u32_at(bytes, at);
        if found != EXT4_ORPHAN_BLOCK_MAGIC {
            return Err(FormatError::OrphanMagic { block, found });
        }
        let found = u32_at(bytes, at + 4);
        match self.checksum(bytes, at, block) {
            Some(expected) if expected != found => {
                Err(FormatError::OrphanChecksum { block, found, expected })
            }
            _ => Ok(()),
        }
    }

    /// Makes magic and checksum of the block at `block` on the volume.
    ///
    /// # Errors
    /// [`FormatError::Truncated`].
    pub fn seal(&self, bytes: &mut [u8], block: u64) -> Result<()> {
        let at = tail(bytes)?;
        put_u32(bytes, at, EXT4_ORPHAN_BLOCK_MAGIC);
        if let Some(sum) = self.checksum(bytes, at, block) {
            put_u32(bytes, at + 4, sum);
        }
        Ok(())
    }

    fn checksum(&self, bytes: &[u8], tail: usize, block: u64) -> Option<u32> {
        Some(ext4_chksum(ext4_chksum(self.seed?, &block.to_le_bytes()), bytes.get(..tail)?))
    }
}

/// Returns where the tail of the block starts.
fn tail(bytes: &[u8]) -> Result<usize> {
    let need = 1024;
    if bytes.len() < need {
        return Err(FormatError::Truncated { what: "orphan file block", len: bytes.len(), need });
    }
    Ok(bytes.len() - TAIL)
}

/// Returns the inode numbers of a verified block, free places (0) included.
pub fn entries(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    let end = bytes.len().saturating_sub(TAIL);
    bytes.get(..end).unwrap_or_default().chunks_exact(4).map(|c| u32_at(c, 0))
}

/// Sets the place `index` of a block to `ino`; nothing beyond the last place. The block must then
/// be sealed.
pub fn set_entry(bytes: &mut [u8], index: u32, ino: u32) {
    let end = bytes.len().saturating_sub(TAIL);
    if let Some(places) = bytes.get_mut(..end) {
        put_u32(places, (index as usize).saturating_mul(4), ino);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Superblock;
    use crate::testing::{mke2fs, run};

    #[test]
    fn reads_and_makes_the_blocks_of_mke2fs() {
        for features in ["orphan_file", "orphan_file,^metadata_csum"] {
            let image = mke2fs("40M", &["-t", "ext4", "-b", "1024", "-O", features]);
            let bytes = image.bytes();
            let sb = Superblock::parse(&bytes[1024..]).unwrap();
            let ino = sb.raw().s_orphan_file_inum.get();
            let blocks = run("debugfs", &["-R", &format!("blocks <{ino}>"), image.0.to_str().unwrap()]);
            let block: u64 = blocks.split_whitespace().next().unwrap().parse().unwrap();
            let original = &bytes[block as usize * 1024..][..1024];
            let file = OrphanFile::new(&Inode::new(ino, 0, &sb.inode_context()), &sb.checksummer());
            file.verify(original, block).unwrap();
            assert_eq!(entries(original).count(), 254);
            assert_eq!(OrphanFile::entries_per_block(1024), 254);

            let mut copy = original.to_vec();
            copy[1016..].fill(0);
            assert_eq!(file.verify(&copy, block), Err(FormatError::OrphanMagic { block, found: 0 }));
            file.seal(&mut copy, block).unwrap();
            assert_eq!(copy, original);
            set_entry(&mut copy, 253, 77);
            let csum = sb.checksummer().fs_seed().is_some();
            assert_eq!(file.verify(&copy, block).is_err(), csum);
            set_entry(&mut copy, 254, 99);
            assert_eq!(entries(&copy).last(), Some(77));
        }
    }
}
