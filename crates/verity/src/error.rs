//! The errors of hash trees.

use lanefs_device::DeviceError;

/// Result of this crate.
pub(crate) type Result<T> = std::result::Result<T, VerityError>;

/// The reason why a tree is not made, or does not vouch for its data.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerityError {
    /// A device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// There is no superblock.
    #[error("there is no dm-verity superblock at byte {0}")]
    NoSuperblock(u64),
    /// A field of the superblock has a value that is not known.
    #[error("the dm-verity superblock has {field} {value}, and {bound} is known")]
    Field {
        /// The field, as cryptsetup calls it.
        field: &'static str,
        /// Its value.
        value: String,
        /// The values that it may have.
        bound: &'static str,
    },
    /// The data or the tree has no room.
    #[error("{what} ends at byte {end}, beyond the end of its device ({size} bytes)")]
    TooShort {
        /// The data or the tree.
        what: &'static str,
        /// Where it would end.
        end: u64,
        /// Size of the device.
        size: u64,
    },
    /// The top of the tree does not have the root hash.
    #[error("the root hash is not that of the tree")]
    RootHash,
    /// A data block does not have the digest in the tree.
    #[error("data block {block} (byte {byte}) is not what the tree says")]
    Data {
        /// The first wrong one.
        block: u64,
        /// Its first byte in the volume.
        byte: u64,
    },
    /// A block of the tree does not have the digest in the level above.
    #[error("block {block} of level {level} of the tree (byte {byte}) is not what the level above says")]
    Tree {
        /// From the bottom, which is 0.
        level: usize,
        /// The first wrong one in its level.
        block: u64,
        /// Its first byte on the device of the tree.
        byte: u64,
    },
    /// A level goes on behind its last digest: the superblock, which the root hash does not cover,
    /// was changed, and leaves data out.
    #[error("level {level} of the tree has digests behind those of the blocks that the superblock counts")]
    Behind {
        /// From the bottom, which is 0.
        level: usize,
    },
    /// The caller has cancelled it.
    #[error("cancelled")]
    Cancelled,
}
