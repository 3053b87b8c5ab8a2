//! Feature bits of the journal superblock.

use bitflags::bitflags;

bitflags! {
    /// `s_feature_compat`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Compat: u32 {
        /// One crc32 of a whole transaction in its commit block ("v1").
        const CHECKSUM = 0x1;
    }

    /// `s_feature_incompat`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Incompat: u32 {
        /// There are revoke blocks.
        const REVOKE = 0x1;
        /// Block numbers have 64 bits.
        const BIT64 = 0x2;
        /// The commit block may reach the medium before the rest.
        const ASYNC_COMMIT = 0x4;
        /// Checksums in every block, 16 bits in a tag.
        const CSUM_V2 = 0x8;
        /// Checksums in every block, 32 bits in a tag.
        const CSUM_V3 = 0x10;
        /// The end of the log holds fast commits.
        const FAST_COMMIT = 0x20;
    }
}
