//! Files with fs-verity that are not what their hash tree says.

use lanefs_format::verity::DescriptorError;

/// Why a file with fs-verity cannot be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq, Clone)]
#[non_exhaustive]
pub enum VerityError {
    /// The inode has the flag and no extents.
    #[error("inode {ino} has a hash tree and no extents")]
    NoExtents {
        /// The inode.
        ino: u32,
    },
    /// The length at the end of the last block is not that of a descriptor behind a tree.
    #[error("inode {ino}: a descriptor of {len} bytes cannot end at byte {end}: {rule}")]
    Place {
        /// The inode.
        ino: u32,
        /// The length.
        len: u32,
        /// The end of the inode's blocks, in bytes.
        end: u64,
        /// What is wrong.
        rule: &'static str,
    },
    /// The descriptor breaks a rule.
    #[error("descriptor of inode {ino}: {error}")]
    Descriptor {
        /// The inode.
        ino: u32,
        /// The rule.
        error: DescriptorError,
    },
    /// A block of the content does not have the digest that the tree says.
    #[error("block {block} of inode {ino} is not what its hash tree says")]
    Data {
        /// The inode.
        ino: u32,
        /// The block, in blocks of the tree.
        block: u64,
    },
    /// A block of the tree does not have the digest that the block above it says.
    #[error("block {block} of the hash tree of inode {ino} is not what the block above says")]
    Tree {
        /// The inode.
        ino: u32,
        /// The block, from the start of the tree.
        block: u64,
    },
}
