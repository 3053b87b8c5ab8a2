//! jbd2's blocks on disk: superblock, descriptor, commit and revoke. Everything is big-endian.
//!
//! Format: the kernel's `Documentation/filesystems/ext4/journal.rst`. A log block that carries
//! the magic and the expected sequence number is one of these; any other is a copy of a metadata
//! block, or old. A copy that happens to start with the magic is stored with those four bytes
//! zeroed and its tag marked [`TagFlags::ESCAPE`].

mod checksum;
mod commit;
mod descriptor;
mod error;
mod features;
mod revoke;
mod superblock;
mod tag;

pub use checksum::{Checksum, Crc32Be, Layout};
pub use commit::{Commit, CommitCheck};
pub use descriptor::{Descriptor, Tags, parse_tags};
pub use error::Jbd2Error;
pub use features::{Compat, Incompat};
pub use revoke::{RevokeBlock, parse_revokes};
pub use superblock::Superblock;
pub use tag::{Tag, TagFlags};

/// `h_magic` of every block of the log that is not a copy.
pub const MAGIC: u32 = 0xC03B_3998;

/// Length of the header in bytes.
pub const HEADER_LEN: usize = 12;

/// Length of the checksum at the end of descriptor and revoke blocks.
pub(crate) const TAIL_LEN: usize = 4;

/// `h_blocktype`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockType {
    /// Says where the copies that follow belong.
    Descriptor,
    /// Ends a transaction.
    Commit,
    /// The journal superblock, version 1.
    SuperblockV1,
    /// The journal superblock, version 2.
    SuperblockV2,
    /// Names blocks of which older copies are void.
    Revoke,
}

impl BlockType {
    fn number(self) -> u32 {
        match self {
            Self::Descriptor => 1,
            Self::Commit => 2,
            Self::SuperblockV1 => 3,
            Self::SuperblockV2 => 4,
            Self::Revoke => 5,
        }
    }
}

/// The start of a log block (`journal_header_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// `h_blocktype`, `None` for a number that no version knows.
    pub block_type: Option<BlockType>,
    /// `h_sequence`: the transaction.
    pub sequence: u32,
}

impl Header {
    /// Parses the header of `block`; `None` if the block does not start with the magic.
    pub fn parse(block: &[u8]) -> Option<Self> {
        if get_u32(block, 0)? != MAGIC {
            return None;
        }
        let block_type = match get_u32(block, 4)? {
            1 => Some(BlockType::Descriptor),
            2 => Some(BlockType::Commit),
            3 => Some(BlockType::SuperblockV1),
            4 => Some(BlockType::SuperblockV2),
            5 => Some(BlockType::Revoke),
            _ => None,
        };
        Some(Self { block_type, sequence: get_u32(block, 8)? })
    }

    fn put(block: &mut [u8], block_type: BlockType, sequence: u32) {
        put_u32(block, 0, MAGIC);
        put_u32(block, 4, block_type.number());
        put_u32(block, 8, sequence);
    }
}

/// Returns whether a metadata block must be escaped in the log.
pub fn needs_escape(content: &[u8]) -> bool {
    get_u32(content, 0) == Some(MAGIC)
}

/// Zeroes the first four bytes of a copy that starts with the magic.
pub fn escape(copy: &mut [u8]) {
    put_u32(copy, 0, 0);
}

/// Gives an escaped copy its first four bytes back.
pub fn unescape(copy: &mut [u8]) {
    put_u32(copy, 0, MAGIC);
}

pub(crate) fn get_u32(bytes: &[u8], at: usize) -> Option<u32> {
    let field = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_be_bytes(field.try_into().ok()?))
}

pub(crate) fn get_u64(bytes: &[u8], at: usize) -> Option<u64> {
    let field = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_be_bytes(field.try_into().ok()?))
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    debug_assert!(at + value.len() <= bytes.len(), "field beyond the block");
    if let Some(field) = bytes.get_mut(at..at + value.len()) {
        field.copy_from_slice(value);
    }
}

pub(crate) fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    put(bytes, at, &value.to_be_bytes());
}

pub(crate) fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    put(bytes, at, &value.to_be_bytes());
}

#[cfg(test)]
mod tests;
