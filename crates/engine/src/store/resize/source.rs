//! The blocks that a step of growth changes, as they are before it.

use super::Blocks;
use crate::error::Result;
use crate::store::Store;
use lanefs_format::{GroupDesc, Superblock};

/// The metadata of a volume as it is now: on the device of a closed volume, or in the journal's
/// cache of an open one.
pub(super) trait MetadataSource {
    /// Returns the content of a block.
    ///
    /// # Errors
    /// The device's.
    fn read(&self, block: u64) -> Result<Vec<u8>>;
}

impl MetadataSource for Blocks {
    fn read(&self, block: u64) -> Result<Vec<u8>> {
        Blocks::read(self, block)
    }
}

impl MetadataSource for Store {
    fn read(&self, block: u64) -> Result<Vec<u8>> {
        Ok(self.journal.read(block)?.read().to_vec())
    }
}

/// Reads all descriptors.
///
/// # Errors
/// A damaged descriptor; the device's.
pub(super) fn read_groups(source: &dyn MetadataSource, sb: &Superblock) -> Result<Vec<GroupDesc>> {
    let (layout, csum) = (sb.layout(), sb.checksummer());
    let mut groups = Vec::new();
    for n in 0..layout.desc_blocks() {
        let bytes = source.read(layout.desc_block(n)?)?;
        let first = n * layout.descs_per_block();
        let slots =
            bytes.chunks_exact(usize::from(layout.desc_size())).take(layout.descs_per_block() as usize);
        for (group, slot) in (first..layout.group_count()).zip(slots) {
            groups.push(GroupDesc::parse(slot, group, &layout, &csum)?);
        }
    }
    Ok(groups)
}
