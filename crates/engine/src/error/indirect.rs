//! Rules of the indirect block map that can be broken.

/// A rule of the indirect map that is violated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each message names its fields")]
pub enum IndirectError {
    #[error("inode {ino}: the map of logical block {lblk} names block {block}, outside of {bound:?}")]
    Pointer { ino: u32, lblk: u32, block: u32, bound: std::ops::Range<u64> },
    #[error("inode {ino}: logical blocks {lblk}+{len} are to be mapped, but some are already")]
    Mapped { ino: u32, lblk: u32, len: u32 },
    #[error("inode {ino}: block {block} holds numbers of the map, and is mapped by it")]
    OwnTable { ino: u32, block: u32 },
}
