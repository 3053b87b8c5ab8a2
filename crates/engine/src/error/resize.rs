//! Sizes that a volume cannot be given.

/// Why the size of a volume cannot be changed.
#[derive(Debug, thiserror::Error, PartialEq, Eq, Clone)]
#[non_exhaustive]
pub enum ResizeError {
    /// The device ends before the volume would.
    #[error("{blocks} blocks of {block_size} bytes do not fit on a device of {device} bytes")]
    BeyondDevice {
        /// Blocks wanted.
        blocks: u64,
        /// Bytes of a block.
        block_size: u32,
        /// Bytes of the device.
        device: u64,
    },
    /// A volume that is open does not shrink.
    #[error("{blocks} blocks are fewer than the {before} of now: a volume shrinks only while it is closed")]
    OnlyGrows {
        /// Blocks wanted.
        blocks: u64,
        /// Blocks of now.
        before: u64,
    },
    /// Block numbers of 32 bits do not reach so far.
    #[error("{blocks} blocks: without the feature 64bit a volume has at most {max}")]
    Needs64Bit {
        /// Blocks wanted.
        blocks: u64,
        /// The most that there can be.
        max: u64,
    },
    /// Inode numbers do not reach so far.
    #[error("{blocks} blocks: with {per_group} inodes in a group, inode numbers reach to {max} blocks")]
    TooManyInodes {
        /// Blocks wanted.
        blocks: u64,
        /// Inodes of a group.
        per_group: u32,
        /// The most blocks that there can be.
        max: u64,
    },
    /// A run that has to move finds no place, in pieces either.
    #[error("{blocks} blocks are too few: not enough free blocks before it for {len} that have to move")]
    NoRun {
        /// Blocks wanted.
        blocks: u64,
        /// Blocks of the run.
        len: u32,
    },
    /// The log finds no place before the wanted end.
    #[error("{blocks} blocks are too few: the log of {len} blocks finds no room before it")]
    NoRoomForLog {
        /// Blocks wanted.
        blocks: u64,
        /// Blocks of the log.
        len: u32,
    },
    /// Structures lie behind the wanted end that cannot be moved.
    #[error("{blocks} blocks are too few: {what} lies at block {block}, and lanefs does not move it")]
    Immovable {
        /// Blocks wanted.
        blocks: u64,
        /// The structure.
        what: &'static str,
        /// Where it lies.
        block: u64,
    },
    /// More inodes are in use than the smaller volume would have.
    #[error("{blocks} blocks are too few: there would be {max} inodes, {more} fewer than are in use")]
    TooFewInodes {
        /// Blocks wanted.
        blocks: u64,
        /// Inodes that there would be.
        max: u32,
        /// Inodes in use that find no place.
        more: u32,
    },
    /// A reserved inode, one that the superblock names, or on a volume with `stable_inodes` any
    /// other has a number that the smaller volume would not have.
    #[error("{blocks} blocks are too few: inode {ino} keeps its number, and {max} would be the last one")]
    InodeInUse {
        /// Blocks wanted.
        blocks: u64,
        /// The inode.
        ino: u32,
        /// The last inode that there would be.
        max: u32,
    },
    /// The volume has errors, or was not closed.
    #[error("the volume is not known to be sound (s_state {state:#x}): check it first")]
    Unsound {
        /// `s_state`.
        state: u16,
    },
    /// A step changes more blocks than a transaction of the log can have.
    #[error("a step changes {need} blocks at once, and a transaction of this log has at most {max}")]
    LogTooSmall {
        /// Blocks that change together.
        need: u32,
        /// The most that a transaction has.
        max: u32,
    },
}
