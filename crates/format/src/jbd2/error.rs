//! Every rule of the journal's format that a log can break.

/// A violated rule of the journal's format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Jbd2Error {
    /// The journal superblock lacks the magic.
    #[error("journal superblock: h_magic is {found:#010x}, not 0xc03b3998")]
    SuperblockMagic {
        /// What is there.
        found: u32,
    },
    /// The journal superblock has another type than 3 or 4.
    #[error("journal superblock: h_blocktype is {found}, not 3 or 4")]
    SuperblockType {
        /// What is there.
        found: u32,
    },
    /// Fewer bytes than a journal superblock has.
    #[error("journal superblock: {len} bytes instead of 1024")]
    SuperblockLength {
        /// What is there.
        len: usize,
    },
    /// The journal superblock's checksum is wrong.
    #[error("journal superblock: s_checksum is {found:#010x}, computed {computed:#010x}")]
    SuperblockChecksum {
        /// `s_checksum`.
        found: u32,
        /// What it should be.
        computed: u32,
    },
    /// Both checksum versions at once, or one of them together with the old one.
    #[error(
        "journal superblock: more than one kind of checksum (compat {compat:#x}, incompat {incompat:#x})"
    )]
    ChecksumFeatures {
        /// `s_feature_compat`.
        compat: u32,
        /// `s_feature_incompat`.
        incompat: u32,
    },
    /// An algorithm that is not crc32c.
    #[error("journal superblock: s_checksum_type is {found}, not 4 (crc32c)")]
    ChecksumType {
        /// `s_checksum_type`.
        found: u8,
    },
    /// Feature bits that jbd2 does not define.
    #[error("journal superblock: unknown features (incompat {incompat:#x}, ro_compat {ro_compat:#x})")]
    UnknownFeatures {
        /// The unknown bits of `s_feature_incompat`.
        incompat: u32,
        /// The unknown bits of `s_feature_ro_compat`.
        ro_compat: u32,
    },
    /// The log's blocks have another size than the file system's.
    #[error("journal superblock: s_blocksize is {found}, the file system's blocks have {expected} bytes")]
    BlockSize {
        /// `s_blocksize`.
        found: u32,
        /// The file system's block size.
        expected: u32,
    },
    /// The log claims more blocks than the journal inode maps, or too few to work with.
    #[error("journal superblock: s_maxlen is {maxlen}, the journal has {blocks} blocks")]
    MaxLen {
        /// `s_maxlen`.
        maxlen: u32,
        /// Blocks of the journal inode.
        blocks: u64,
    },
    /// `s_first` does not lie inside the log.
    #[error("journal superblock: s_first is {first}, the log ends at {end}")]
    First {
        /// `s_first`.
        first: u32,
        /// The block behind the last.
        end: u32,
    },
    /// `s_start` does not lie inside the log.
    #[error("journal superblock: s_start is {start}, the log is blocks {first}..{end}")]
    Start {
        /// `s_start`.
        start: u32,
        /// `s_first`.
        first: u32,
        /// The block behind the last.
        end: u32,
    },
    /// The fast-commit area leaves no log.
    #[error("journal superblock: s_num_fc_blks is {fast} of {maxlen} blocks")]
    FastCommitBlocks {
        /// `s_num_fc_blks`.
        fast: u32,
        /// `s_maxlen`.
        maxlen: u32,
    },
    /// A descriptor that ends before its last tag.
    #[error("descriptor block: no last tag in {len} bytes")]
    DescriptorUnterminated {
        /// Bytes of the block.
        len: usize,
    },
    /// A revoke block whose length is not inside the block.
    #[error("revoke block: r_count is {count}, the block has {max} bytes for it")]
    RevokeCount {
        /// `r_count`.
        count: u32,
        /// The most it can be.
        max: usize,
    },
}
