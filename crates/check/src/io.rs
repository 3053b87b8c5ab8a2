//! Reading by block.

use crate::CheckError;
use lanefs_device::{AlignedBuf, BlockDevice};
use std::sync::Arc;

/// The volume's device, addressed by block.
#[derive(Debug, Clone)]
pub(crate) struct Io {
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) block_size: u32,
}

impl Io {
    /// Fills `buf`, whole blocks, from `block` on.
    pub(crate) fn read(&self, block: u64, buf: &mut [u8]) -> Result<(), CheckError> {
        let at = block.saturating_mul(self.block_size.into());
        Ok(self.device.read_at(buf, at)?)
    }

    /// Returns a buffer for `blocks` blocks, at least one, of at most `max` bytes. A small volume
    /// gets a small one: to map a large one takes longer than all of its reads.
    pub(crate) fn chunk(&self, blocks: u64, max: usize) -> AlignedBuf {
        let block_size = self.block_size as usize;
        let wanted = usize::try_from(blocks).unwrap_or(max).saturating_mul(block_size);
        AlignedBuf::zeroed(wanted.clamp(block_size, max.max(block_size)))
    }

    /// Returns a copy of one block.
    pub(crate) fn block(&self, block: u64) -> Result<AlignedBuf, CheckError> {
        let mut buf = AlignedBuf::zeroed(self.block_size as usize);
        self.read(block, &mut buf)?;
        Ok(buf)
    }

    /// Returns a copy of one block that another host may have changed.
    pub(crate) fn shared_block(&self, block: u64) -> Result<AlignedBuf, CheckError> {
        let mut buf = AlignedBuf::zeroed(self.block_size as usize);
        self.device.read_shared(&mut buf, block.saturating_mul(self.block_size.into()))?;
        Ok(buf)
    }
}

/// Returns the little-endian word at byte `at`, 0 beyond the end.
pub(crate) fn le32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_le_bytes(*b))
}
