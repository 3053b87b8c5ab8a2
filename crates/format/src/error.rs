//! The errors of a volume's structures: one variant for each rule of the format.

/// Result of a parse.
pub type Result<T> = std::result::Result<T, FormatError>;

/// A rule of the format that a volume breaks: the structure, the number found and the bound.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum FormatError {
    // Any structure.
    #[error("{what}: {len} bytes where {need} are needed")]
    Truncated { what: &'static str, len: usize, need: usize },

    // The superblock.
    #[error("superblock: s_magic is {found:#06x}, not 0xef53: not an ext2, ext3 or ext4 volume")]
    BadMagic { found: u16 },
    #[error("superblock: s_checksum is {found:#010x}, its bytes give {expected:#010x}")]
    SuperblockChecksum { found: u32, expected: u32 },
    #[error("superblock: s_checksum_type is {value}, only 1 (crc32c) exists")]
    ChecksumType { value: u8 },
    #[error("superblock: s_rev_level is {value}, the newest is 1")]
    RevLevel { value: u32 },
    #[error("superblock: s_log_block_size is {value}, at most 6 (64 KiB blocks)")]
    LogBlockSize { value: u32 },
    #[error("superblock: s_log_cluster_size is {value}, must be between {min} and {max}")]
    LogClusterSize { value: u32, min: u32, max: u32 },
    #[error("superblock: s_blocks_per_group is {value}, must be a multiple of 8 between 8 and {max}")]
    BlocksPerGroup { value: u32, max: u64 },
    #[error("superblock: s_clusters_per_group is {value}, blocks per group ask for {expected}")]
    ClustersPerGroup { value: u32, expected: u32 },
    #[error("superblock: s_inodes_per_group is {value}, must be between {min} and {max}")]
    InodesPerGroup { value: u32, min: u32, max: u32 },
    #[error("superblock: s_inode_size is {value}, must be a power of two between 128 and {max}")]
    InodeSize { value: u16, max: u32 },
    #[error("superblock: s_first_ino is {value}, must be between 11 and {max}")]
    FirstIno { value: u32, max: u32 },
    #[error("superblock: s_desc_size is {value}, must be a power of two between {min} and {max}")]
    DescSize { value: u16, min: u16, max: u32 },
    #[error("superblock: s_first_data_block is {value}, must be {expected}")]
    FirstDataBlock { value: u32, expected: u32 },
    #[error("superblock: s_blocks_count is {value}, too few for one group")]
    TooFewBlocks { value: u64 },
    #[error("superblock: s_blocks_count is {value}, more than {max} groups")]
    TooManyGroups { value: u64, max: u64 },
    #[error("superblock: {blocks} blocks of {block_size} bytes do not fit on a device of {device} bytes")]
    BlocksCountDevice { blocks: u64, block_size: u32, device: u64 },
    #[error("superblock: s_inodes_count is {value}, {groups} groups of {per_group} inodes make {expected}")]
    InodesCount { value: u32, groups: u64, per_group: u32, expected: u64 },
    #[error("superblock: s_free_blocks_count is {value}, more than the {max} blocks")]
    FreeBlocksCount { value: u64, max: u64 },
    #[error("superblock: s_free_inodes_count is {value}, more than the {max} inodes")]
    FreeInodesCount { value: u32, max: u32 },
    #[error("superblock: s_r_blocks_count is {value}, more than the {max} blocks")]
    ReservedBlocksCount { value: u64, max: u64 },
    #[error("superblock: s_reserved_gdt_blocks is {value}, at most {max}")]
    ReservedGdtBlocks { value: u16, max: u32 },
    #[error("superblock: s_first_meta_bg is {value}, the volume has {max} descriptor blocks")]
    FirstMetaBg { value: u32, max: u32 },
    #[error("superblock: s_log_groups_per_flex is {value}, at most 31")]
    LogGroupsPerFlex { value: u8 },
    #[error("superblock: s_journal_inum is {value}, the volume has {max} inodes")]
    JournalInum { value: u32, max: u32 },
    #[error("superblock: s_orphan_file_inum is {value}, the volume has {max} inodes")]
    OrphanFileInum { value: u32, max: u32 },

    // Places on the volume.
    #[error("group {group} is beyond the {count} groups of the volume")]
    GroupRange { group: u32, count: u32 },
    #[error("blocks {block} (+{count}) lie outside the volume's {first}..{end}")]
    BlockRange { block: u64, count: u64, first: u64, end: u64 },
    #[error("inode {ino} is outside the volume's 1..={max}")]
    InodeRange { ino: u32, max: u32 },

    // Group descriptors and bitmaps.
    #[error("group {group}: bg_checksum is {found:#06x}, the descriptor gives {expected:#06x}")]
    GroupChecksum { group: u32, found: u16, expected: u16 },
    #[error("group {group}: {field} is at block {block}, outside the volume's {first}..{end}")]
    GroupBlock { group: u32, field: &'static str, block: u64, first: u64, end: u64 },
    #[error("group {group}: {field} is {value}, the group has {max}")]
    GroupCount { group: u32, field: &'static str, value: u32, max: u32 },
    #[error("group {group}: the {which} bitmap has checksum {found:#010x}, its bytes give {expected:#010x}")]
    BitmapChecksum { group: u32, which: &'static str, found: u32, expected: u32 },
    #[error("bitmap: bits {start}..{end} lie outside its {bits} bits")]
    BitmapRange { start: usize, end: usize, bits: usize },

    // Inodes.
    #[error("inode {ino}: checksum is {found:#010x}, its bytes give {expected:#010x}")]
    InodeChecksum { ino: u32, found: u32, expected: u32 },
    #[error("inode {ino}: i_extra_isize is {value}, must be a multiple of 4 and at most {max}")]
    ExtraIsize { ino: u32, value: u16, max: u16 },
    #[error("inode {ino}: i_mode {mode:#o} is of no known file type")]
    FileMode { ino: u32, mode: u16 },
    #[error("inode {ino}: i_size {size} is beyond {max}")]
    FileSize { ino: u32, size: u64, max: u64 },
    #[error("inode {ino}: {blocks} sectors do not fit in i_blocks (at most {max})")]
    FileBlocks { ino: u32, blocks: u64, max: u64 },
    #[error("inode {ino}: i_file_acl {block} does not fit in 48 bits")]
    FileAcl { ino: u32, block: u64 },
    #[error("inode {ino}: the xattr area is {len} bytes, the inode has room for {expected}")]
    XattrArea { ino: u32, len: usize, expected: usize },

    // The orphan file and MMP.
    #[error("orphan file block {block}: ob_magic is {found:#010x}, not 0x0b10ca04")]
    OrphanMagic { block: u64, found: u32 },
    #[error("orphan file block {block}: ob_checksum is {found:#010x}, its bytes give {expected:#010x}")]
    OrphanChecksum { block: u64, found: u32, expected: u32 },
    #[error("MMP block {block}: mmp_magic is {found:#010x}, not 0x004d4d50")]
    MmpMagic { block: u64, found: u32 },
    #[error("MMP block {block}: mmp_checksum is {found:#010x}, its bytes give {expected:#010x}")]
    MmpChecksum { block: u64, found: u32, expected: u32 },
}
