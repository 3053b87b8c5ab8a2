//! Parameters of a volume's directories, read once when it is opened.

use lanefs_format::dirent::DirLayout;
use lanefs_format::hash::{HashVersion, NameHasher};
use lanefs_format::{Compat, HashFlags, Incompat, RoCompat, Superblock};

/// Bits of a block number in an index.
const INDEX_BLOCK_BITS: u32 = 28;

/// Parameters of all directories of a volume.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DirParams {
    pub(super) layout: DirLayout,
    /// The function for new indexes, and for the order in which unindexed blocks are listed.
    pub(super) hasher: NameHasher,
    /// The volume has `dir_index`.
    pub(super) index: bool,
    /// Levels that an index may have below its root.
    pub(super) max_levels: u8,
}

impl DirParams {
    pub(crate) fn new(sb: &Superblock) -> Self {
        let features = sb.features();
        // With an unknown default (SipHash is not for plain directories), new indexes use half-MD4;
        // each index records its function.
        let version = HashVersion::from_raw(sb.raw().s_def_hash_version).unwrap_or(HashVersion::HalfMd4);
        Self {
            layout: DirLayout {
                block_size: sb.block_size() as usize,
                inodes_count: sb.inodes_count(),
                checksums: features.ro_compat.contains(RoCompat::METADATA_CSUM),
                file_types: features.incompat.contains(Incompat::FILETYPE),
            },
            hasher: NameHasher::new(version, sb.flags().contains(HashFlags::UNSIGNED_HASH), sb.hash_seed()),
            index: features.compat.contains(Compat::DIR_INDEX),
            max_levels: if features.incompat.contains(Incompat::LARGEDIR) { 2 } else { 1 },
        }
    }

    /// Returns the largest i_size of a directory, in bytes.
    pub(crate) fn max_size(&self) -> u64 {
        let block_size = self.layout.block_size as u64;
        // Without large_dir, the upper half of i_size is another field in directories.
        let by_inode = if self.max_levels > 1 { u64::MAX } else { u64::from(u32::MAX) };
        by_inode.min(block_size << INDEX_BLOCK_BITS)
    }
}
