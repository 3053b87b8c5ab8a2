//! How full a volume is.

use super::Fs;

/// Sizes and counts of a volume, as statfs(2) has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatFs {
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks that files can have: all without the fixed metadata and the journal.
    pub blocks: u64,
    /// Blocks that are free, or will be once their freeing has committed.
    pub blocks_free: u64,
    /// Blocks that are free and not reserved for root.
    pub blocks_available: u64,
    /// Inodes.
    pub inodes: u64,
    /// Inodes that are free.
    pub inodes_free: u64,
    /// Bytes of the longest name.
    pub name_max: u32,
    /// s_uuid.
    pub uuid: [u8; 16],
}

impl Fs {
    pub(crate) fn statfs(&self) -> StatFs {
        let layout = self.layout();
        // With bigalloc, read-only, the sum over the descriptors is one of clusters.
        let free = layout.blocks_of(self.alloc.blocks_to_come());
        StatFs {
            block_size: self.block_size,
            blocks: layout.blocks_count().saturating_sub(self.overhead()),
            blocks_free: free,
            blocks_available: free.saturating_sub(self.reserved_blocks()),
            inodes: u64::from(layout.inodes_count()),
            inodes_free: self.alloc.free_inodes(),
            name_max: lanefs_format::dirent::NAME_MAX as u32,
            uuid: self.sb.lock().raw().s_uuid,
        }
    }
}
