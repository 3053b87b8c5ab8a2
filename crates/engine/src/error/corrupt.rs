//! Structures of a volume that contradict each other.

use std::fmt;

/// Structures that are valid by themselves and contradict each other.
#[derive(Debug, thiserror::Error, PartialEq, Eq, Clone)]
#[non_exhaustive]
pub enum Corrupt {
    /// An inode number that the volume does not have.
    #[error("inode {ino} named by {by} lies outside 1..={count}")]
    InodeNumber {
        /// The number.
        ino: u32,
        /// The structure that names it.
        by: &'static str,
        /// Inodes of the volume.
        count: u32,
    },
    /// A name leads to an inode that is free.
    #[error("inode {ino} has a name and i_links_count 0")]
    DeadInode {
        /// The inode.
        ino: u32,
    },
    /// A structure points at a block that it cannot own.
    #[error("block {block} lies outside of the data blocks of the volume ({blocks} blocks)")]
    BlockOutside {
        /// The block.
        block: u64,
        /// Blocks of the volume.
        blocks: u64,
    },
    /// A structure points into the fixed metadata of a group.
    #[error("block {block} belongs to the fixed metadata: {zone}")]
    SystemZone {
        /// The block.
        block: u64,
        /// The structure that lies there.
        zone: Zone,
    },
    /// A structure points into the journal.
    #[error("block {block} belongs to the journal")]
    JournalBlock {
        /// The block.
        block: u64,
    },
    /// Two pieces of fixed metadata share a block.
    #[error("block {block} is both {first} and {second}")]
    ZonesOverlap {
        /// The first block that they share.
        block: u64,
        /// The piece that begins first.
        first: Zone,
        /// The other one.
        second: Zone,
    },
    /// A block is freed that the bitmap has as free.
    #[error("block {block} of group {group} is freed and its bitmap bit is already clear")]
    DoubleFree {
        /// The block.
        block: u64,
        /// Its group.
        group: u32,
    },
    /// A block is taken whose bitmap bit is set.
    #[error("block {block} of group {group} is allocated and its bitmap bit is already set")]
    DoubleUse {
        /// The block.
        block: u64,
        /// Its group.
        group: u32,
    },
    /// A file owns a block that the bitmap has as free.
    #[error("block {block} of group {group} belongs to a file, and the block bitmap has it as free")]
    FreeBlockInUse {
        /// The block.
        block: u64,
        /// Its group.
        group: u32,
    },
    /// An inode is freed that the bitmap has as free.
    #[error("inode {ino} of group {group} is freed and its bitmap bit is already clear")]
    InodeDoubleFree {
        /// The inode.
        ino: u32,
        /// Its group.
        group: u32,
    },
    /// A bitmap whose checksum is not the one of its descriptor.
    #[error(
        "{what} bitmap of group {group} (block {block}): checksum {found:#010x}, descriptor has {expected:#010x}"
    )]
    BitmapChecksum {
        /// "block" or "inode".
        what: &'static str,
        /// The group.
        group: u32,
        /// Where the bitmap lies.
        block: u64,
        /// Computed.
        found: u32,
        /// Stored.
        expected: u32,
    },
    /// A block bitmap that has fixed metadata as free.
    #[error("block bitmap of group {group} has block {block} as free, which belongs to {zone}")]
    BitmapMissesMetadata {
        /// The group.
        group: u32,
        /// The block.
        block: u64,
        /// The structure that lies there.
        zone: Zone,
    },
    /// A group with more inodes that were never in use than it has free ones.
    #[error(
        "group {group} has {unused} inodes that were never in use (bg_itable_unused, INODE_UNINIT) and {free} that are free"
    )]
    UnusedInodes {
        /// The group.
        group: u32,
        /// Inodes that were never in use.
        unused: u32,
        /// bg_free_inodes_count.
        free: u32,
    },
    /// An inode bitmap that has an inode in use as free.
    #[error(
        "inode bitmap of group {group} has inode {ino} as free, which has i_mode {mode:#o} and i_links_count {links}"
    )]
    InodeInUse {
        /// The inode.
        ino: u32,
        /// Its group.
        group: u32,
        /// i_mode.
        mode: u16,
        /// i_links_count.
        links: u16,
    },
    /// A reserved or special inode that is not what it must be.
    #[error("inode {ino} ({role}): {rule}")]
    SpecialInode {
        /// The inode.
        ino: u32,
        /// What it serves as.
        role: &'static str,
        /// The broken rule.
        rule: &'static str,
    },
    /// The orphan list runs in a circle or leaves the volume.
    #[error("orphan list: inode {ino} at place {place} {rule}")]
    OrphanList {
        /// The inode.
        ino: u32,
        /// Place on the list, from 0.
        place: u32,
        /// The broken rule.
        rule: &'static str,
    },
    /// The volume says that it is larger than its device.
    #[error("the superblock counts {blocks} blocks of {block_size} bytes, the device holds {device} bytes")]
    LargerThanDevice {
        /// s_blocks_count.
        blocks: u64,
        /// Block size in bytes.
        block_size: u32,
        /// Size of the device in bytes.
        device: u64,
    },
    /// The map of a file has more runs and holes than it can have on this volume: it leads to the
    /// same blocks over and over.
    #[error("inode {ino}: the map has more than {bound} runs and holes up to logical block {lblk}")]
    MapRuns {
        /// The inode.
        ino: u32,
        /// The logical block where the walk along the map ended.
        lblk: u32,
        /// The most that fit on the volume.
        bound: u64,
    },
    /// A symbolic link without a usable target.
    #[error("symbolic link inode {ino}: {rule} (i_size {size})")]
    Symlink {
        /// The inode.
        ino: u32,
        /// i_size.
        size: u64,
        /// The broken rule.
        rule: &'static str,
    },
}

/// A piece of fixed metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Zone {
    /// The superblock or a copy, descriptors and the space kept for more of them, at the start of a
    /// group.
    Super(u32),
    /// The block bitmap of a group.
    BlockBitmap(u32),
    /// The inode bitmap of a group.
    InodeBitmap(u32),
    /// The inode table of a group.
    InodeTable(u32),
    /// The log.
    Journal,
    /// The block of multiple mount protection.
    Mmp,
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Zone::Super(group) => write!(f, "the superblock or the descriptors in group {group}"),
            Zone::BlockBitmap(group) => write!(f, "the block bitmap of group {group}"),
            Zone::InodeBitmap(group) => write!(f, "the inode bitmap of group {group}"),
            Zone::InodeTable(group) => write!(f, "the inode table of group {group}"),
            Zone::Journal => write!(f, "the journal"),
            Zone::Mmp => write!(f, "the MMP block"),
        }
    }
}
