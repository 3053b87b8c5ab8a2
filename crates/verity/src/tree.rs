//! The tree as a whole, level by level.
//!
//! Invariants:
//! - The superblock is written last, behind a flush of the tree: where there is one, there is a
//!   tree.
//! - A level is compared only when all above it agree, so that what a block is compared with is
//!   what the root hash authenticates.

use crate::error::{Result, VerityError};
use crate::hash::Salted;
use crate::header::Header;
use crate::level::{Below, Level, Work};
use lanefs_device::BlockDevice;

/// A tree and its data.
struct Tree<'a> {
    header: &'a Header,
    data: &'a dyn BlockDevice,
    hashes: &'a dyn BlockDevice,
    /// From the bottom.
    levels: Vec<Level>,
    salted: Salted,
    progress: &'a (dyn Fn(u64) -> bool + Sync),
}

/// Makes the hash area of `header` at byte `offset` of `hashes`, a multiple of its block size, for
/// the data from the start of `data` on. Both may be one device. Returns the root hash.
///
/// `progress` hears how many more bytes were hashed, from any thread; it returns false to cancel.
///
/// # Errors
/// A device's failure or lack of room, a header that no tree can be made by,
/// [`VerityError::Cancelled`].
pub fn format(
    data: &dyn BlockDevice,
    hashes: &dyn BlockDevice,
    offset: u64,
    header: &Header,
    progress: &(dyn Fn(u64) -> bool + Sync),
) -> Result<Vec<u8>> {
    let tree = Tree::new(header, data, hashes, offset, progress)?;
    // That of an older tree, which is not there any more in a moment.
    hashes.write_at(&[0; 512], offset)?;
    hashes.flush()?;
    for level in 0..tree.levels.len() {
        tree.work(level).make()?;
    }
    let root = tree.root()?;
    hashes.flush()?;
    hashes.write_at(&header.to_bytes(), offset)?;
    hashes.flush()?;
    Ok(root)
}

/// Verifies the data from the start of `data` on by the hash area at byte `offset` of `hashes`, and
/// that by `root` if there is one. Returns the root hash that the tree has.
///
/// # Errors
/// The first block that is wrong, from the top of the tree down; no hash area; a device's failure;
/// [`VerityError::Cancelled`].
pub fn verify(
    data: &dyn BlockDevice,
    hashes: &dyn BlockDevice,
    offset: u64,
    root: Option<&[u8]>,
    progress: &(dyn Fn(u64) -> bool + Sync),
) -> Result<Vec<u8>> {
    let header = Header::read(hashes, offset)?;
    let tree = Tree::new(&header, data, hashes, offset, progress)?;
    let own = tree.root()?;
    if root.is_some_and(|root| root != own) {
        return Err(VerityError::RootHash);
    }
    for level in (0..tree.levels.len()).rev() {
        if let Some(block) = tree.work(level).compare()? {
            let below = tree.below(level);
            let byte = below.level.start + block * below.block_size as u64;
            return Err(match level.checked_sub(1) {
                _ if block >= below.level.blocks => VerityError::Behind { level },
                None => VerityError::Data { block, byte },
                Some(level) => VerityError::Tree { level, block, byte },
            });
        }
    }
    Ok(own)
}

impl<'a> Tree<'a> {
    fn new(
        header: &'a Header,
        data: &'a dyn BlockDevice,
        hashes: &'a dyn BlockDevice,
        offset: u64,
        progress: &'a (dyn Fn(u64) -> bool + Sync),
    ) -> Result<Self> {
        if offset > 1 << 60 {
            return Err(VerityError::NoSuperblock(offset));
        }
        let levels = header.levels(offset)?;
        let end = levels.first().map(|level| level.start + level.blocks * u64::from(header.hash_block_size));
        let ends =
            [("the data", header.data_size(), data), ("the tree", end.unwrap_or(offset + 512), hashes)];
        for (what, end, device) in ends {
            if end > device.size() {
                return Err(VerityError::TooShort { what, end, size: device.size() });
            }
        }
        let salted = Salted::new(header.algorithm, &header.salt);
        Ok(Self { header, data, hashes, levels, salted, progress })
    }

    /// Returns the blocks that a level has the digests of.
    fn below(&self, level: usize) -> Below<'a> {
        match level.checked_sub(1) {
            Some(below) => self.hashes_of(below),
            None => Below {
                device: self.data,
                level: Level { start: 0, blocks: self.header.data_blocks },
                block_size: self.header.data_block_size as usize,
            },
        }
    }

    fn hashes_of(&self, level: usize) -> Below<'a> {
        let block_size = self.header.hash_block_size as usize;
        Below { device: self.hashes, level: self.levels[level], block_size }
    }

    fn work(&self, level: usize) -> Work<'_> {
        Work {
            below: self.below(level),
            above: self.hashes_of(level),
            salted: &self.salted,
            per_block: self.header.digests_per_block(),
            digest_size: self.header.algorithm.digest_size(),
            progress: self.progress,
        }
    }

    /// Returns the digest of the top block, which is the data's if there is one block of that.
    fn root(&self) -> Result<Vec<u8>> {
        let top = self.below(self.levels.len());
        let mut block = vec![0; top.block_size];
        top.device.read_at(&mut block, top.level.start)?;
        let mut root = vec![0; self.header.algorithm.digest_size()];
        self.salted.digest_each(&block, top.block_size, &mut root);
        Ok(root)
    }
}
