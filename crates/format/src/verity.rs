//! fs-verity: the descriptor of a file, and where it and the hash tree lie behind the content.
//!
//! The tree begins at the first multiple of [`TREE_ALIGN`] behind i_size. The descriptor begins at
//! the next block behind the tree. The last four bytes of its last block are its length. i_size
//! does not cover any of this.

use crate::le::{put_u32, u32_at};

/// The alignment of the tree in bytes.
pub const TREE_ALIGN: u64 = 65_536;
/// Bytes of a descriptor without its signature.
pub const DESCRIPTOR_SIZE: usize = 256;
/// The most bytes of a descriptor with its signature.
pub const MAX_DESCRIPTOR: usize = 16_384;
/// The most bytes of a salt.
pub const MAX_SALT: usize = 32;
/// The smallest block of a tree, in bytes.
pub const MIN_BLOCK_SIZE: u32 = 1024;
/// The most levels that a tree has.
pub const MAX_LEVELS: usize = 8;

const ROOT_HASH: usize = 16;
const ROOT_HASH_MAX: usize = 64;
const SALT: usize = ROOT_HASH + ROOT_HASH_MAX;
const RESERVED: usize = SALT + MAX_SALT;
const VERSION: u8 = 1;

/// The hash algorithm of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VerityHash {
    /// SHA-256.
    Sha256,
    /// SHA-512.
    Sha512,
}

impl VerityHash {
    /// Returns its number on disk.
    pub fn number(self) -> u8 {
        match self {
            Self::Sha256 => 1,
            Self::Sha512 => 2,
        }
    }

    /// Returns the bytes of a digest.
    pub fn digest_size(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha512 => 64,
        }
    }

    fn of_number(number: u8) -> Option<Self> {
        [Self::Sha256, Self::Sha512].into_iter().find(|hash| hash.number() == number)
    }
}

/// A rule that a descriptor breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DescriptorError {
    /// Fewer bytes than a descriptor has.
    #[error("{0} bytes, at least 256 are needed")]
    Truncated(usize),
    /// An unknown version.
    #[error("version is {0}, 1 is known")]
    Version(u8),
    /// An unknown hash algorithm.
    #[error("hash_algorithm is {0}, 1 (SHA-256) and 2 (SHA-512) are known")]
    Algorithm(u8),
    /// Blocks of the tree that are too small, or larger than the volume's.
    #[error("log_blocksize is {found}, 10 to {max}")]
    BlockSize {
        /// The field.
        found: u8,
        /// That of the volume's blocks.
        max: u8,
    },
    /// A salt that does not fit.
    #[error("salt_size is {0}, at most 32")]
    SaltSize(u8),
    /// A length that is not that of descriptor and signature.
    #[error("sig_size is {found}, and {len} bytes follow the descriptor")]
    SignatureSize {
        /// The field.
        found: u32,
        /// Bytes behind the descriptor.
        len: usize,
    },
    /// A file of another size.
    #[error("data_size is {found}, i_size is {size}")]
    DataSize {
        /// The field.
        found: u64,
        /// i_size.
        size: u64,
    },
    /// Bytes without a meaning that are not zero.
    #[error("{0} has bytes other than zero behind its end")]
    Padding(&'static str),
    /// A root hash where there is nothing to hash.
    #[error("root_hash of an empty file is not zero")]
    RootOfEmpty,
}

/// A descriptor without its signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerityDescriptor {
    /// `hash_algorithm`.
    pub hash: VerityHash,
    /// `log_blocksize`, as bytes.
    pub block_size: u32,
    /// `data_size`: i_size.
    pub data_size: u64,
    /// `root_hash`, as long as a digest: zeros for an empty file.
    pub root_hash: Vec<u8>,
    /// `salt`, at most [`MAX_SALT`] bytes.
    pub salt: Vec<u8>,
}

impl VerityDescriptor {
    /// Checks and decodes the descriptor and signature of a file of `size` bytes, on a volume with
    /// blocks of `volume_block` bytes.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn parse(bytes: &[u8], size: u64, volume_block: u32) -> Result<Self, DescriptorError> {
        let Some((b, signature)) = bytes.split_first_chunk::<DESCRIPTOR_SIZE>() else {
            return Err(DescriptorError::Truncated(bytes.len()));
        };
        if b[0] != VERSION {
            return Err(DescriptorError::Version(b[0]));
        }
        let hash = VerityHash::of_number(b[1]).ok_or(DescriptorError::Algorithm(b[1]))?;
        let (least, max) = (MIN_BLOCK_SIZE.trailing_zeros() as u8, volume_block.trailing_zeros() as u8);
        if !(least..=max).contains(&b[2]) {
            return Err(DescriptorError::BlockSize { found: b[2], max });
        }
        let salt_size = usize::from(b[3]);
        if salt_size > MAX_SALT {
            return Err(DescriptorError::SaltSize(b[3]));
        }
        let sig_size = u32_at(b, 4);
        if sig_size as usize != signature.len() {
            return Err(DescriptorError::SignatureSize { found: sig_size, len: signature.len() });
        }
        let data_size = u64::from(u32_at(b, 12)) << 32 | u64::from(u32_at(b, 8));
        if data_size != size {
            return Err(DescriptorError::DataSize { found: data_size, size });
        }
        let (root_hash, behind_root) = b[ROOT_HASH..SALT].split_at(hash.digest_size());
        let (salt, behind_salt) = b[SALT..RESERVED].split_at(salt_size);
        let rest = [("root_hash", behind_root), ("salt", behind_salt), ("the descriptor", &b[RESERVED..])];
        for (what, rest) in rest {
            if rest.iter().any(|byte| *byte != 0) {
                return Err(DescriptorError::Padding(what));
            }
        }
        if size == 0 && root_hash.iter().any(|byte| *byte != 0) {
            return Err(DescriptorError::RootOfEmpty);
        }
        let (root_hash, salt) = (root_hash.to_vec(), salt.to_vec());
        Ok(Self { hash, block_size: 1 << b[2], data_size, root_hash, salt })
    }

    /// Returns the bytes of the descriptor, as if it had no signature. Their digest is that of the
    /// file.
    pub fn encode(&self) -> [u8; DESCRIPTOR_SIZE] {
        let mut b = [0; DESCRIPTOR_SIZE];
        (b[0], b[1]) = (VERSION, self.hash.number());
        (b[2], b[3]) = (self.block_size.trailing_zeros() as u8, self.salt.len().min(MAX_SALT) as u8);
        b[8..ROOT_HASH].copy_from_slice(&self.data_size.to_le_bytes());
        for (to, from) in b[ROOT_HASH..SALT].iter_mut().zip(&self.root_hash) {
            *to = *from;
        }
        for (to, from) in b[SALT..RESERVED].iter_mut().zip(&self.salt) {
            *to = *from;
        }
        b
    }

    /// Returns the whole blocks, of `volume_block` bytes each, that hold the descriptor: with zeros
    /// behind it, and its length at the end.
    pub fn encode_blocks(&self, volume_block: u32) -> Vec<u8> {
        let mut blocks = self.encode().to_vec();
        blocks.resize((DESCRIPTOR_SIZE + 4).next_multiple_of(volume_block as usize), 0);
        let end = blocks.len() - 4;
        put_u32(&mut blocks, end, DESCRIPTOR_SIZE as u32);
        blocks
    }
}

/// Returns the byte at which the tree of a file of `size` bytes begins; `None` if there is no such
/// byte.
pub fn tree_start(size: u64) -> Option<u64> {
    size.checked_next_multiple_of(TREE_ALIGN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor(hash: VerityHash, size: u64) -> VerityDescriptor {
        let root_hash = vec![if size > 0 { 7 } else { 0 }; hash.digest_size()];
        VerityDescriptor { hash, block_size: 1024, data_size: size, root_hash, salt: vec![1, 2, 3] }
    }

    #[test]
    fn back_and_forth() {
        for (hash, size) in [(VerityHash::Sha256, 0), (VerityHash::Sha256, 1), (VerityHash::Sha512, 1 << 40)]
        {
            let one = descriptor(hash, size);
            assert_eq!(VerityDescriptor::parse(&one.encode(), size, 4096), Ok(one.clone()));
            let blocks = one.encode_blocks(1024);
            assert_eq!((blocks.len(), u32_at(&blocks, 1020)), (1024, 256));
            assert_eq!(blocks[..256], one.encode());
        }
        assert_eq!((tree_start(0), tree_start(1), tree_start(65_536)), (Some(0), Some(65_536), Some(65_536)));
        assert_eq!(tree_start(u64::MAX), None);
    }

    #[test]
    fn each_rule_has_its_error() {
        use DescriptorError::*;
        let good = descriptor(VerityHash::Sha256, 5).encode();
        let cases: [(usize, u8, DescriptorError); 10] = [
            (0, 2, Version(2)),
            (1, 0, Algorithm(0)),
            (2, 9, BlockSize { found: 9, max: 12 }),
            (2, 13, BlockSize { found: 13, max: 12 }),
            (3, 33, SaltSize(33)),
            (4, 1, SignatureSize { found: 1, len: 0 }),
            (8, 6, DataSize { found: 6, size: 5 }),
            (16 + 32, 1, Padding("root_hash")),
            (80 + 3, 1, Padding("salt")),
            (255, 1, Padding("the descriptor")),
        ];
        for (at, byte, error) in cases {
            let mut bad = good;
            bad[at] = byte;
            assert_eq!(VerityDescriptor::parse(&bad, 5, 4096), Err(error));
        }
        assert_eq!(VerityDescriptor::parse(&good[..255], 5, 4096), Err(Truncated(255)));
        let mut empty = descriptor(VerityHash::Sha256, 0).encode();
        empty[16] = 1;
        assert_eq!(VerityDescriptor::parse(&empty, 0, 4096), Err(RootOfEmpty));
        // Every bit counts, but for those of root hash and salt, which the tree checks.
        for bit in
            (0..256 * 8).filter(|bit| !(16 * 8..48 * 8).contains(bit) && !(80 * 8..83 * 8).contains(bit))
        {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            let parsed = VerityDescriptor::parse(&bad, 5, 4096);
            let same = parsed.as_ref().is_ok_and(|parsed| parsed.encode() == good);
            assert!(!same, "bit {bit}");
        }
    }
}
