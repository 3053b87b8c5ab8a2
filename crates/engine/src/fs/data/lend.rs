//! Slices of a file's content, without a copy, on a device that is memory.
//!
//! Two things keep the bytes of a slice from changing:
//! - The file's bytes are locked shared. A thread waits that would move their blocks, or overwrite
//!   them so that readers see all of a write or none of it.
//! - A direct overwrite shares that lock, but the device refuses it if it overlaps a slice that is
//!   lent. The writer then locks the bytes exclusively, and so waits for the slice.

use super::content::Content;
use super::place;
use crate::error::Result;
use crate::fs::file::lock::Kept;
use crate::store::map::Mapping;
use lanefs_device::Lent;

impl<'n> Content<'n> {
    /// Lends `len` bytes at `offset`, with the lock that is held for them; `None` where they must
    /// be copied. Drop the slice before the lock.
    pub(crate) fn lend(self, offset: u64, len: usize) -> Result<Option<(Lent, Kept<'n>)>> {
        let Some(memory) = self.fs().device.mapped().filter(|_| self.fs().dax && len > 0) else {
            return Ok(None);
        };
        let Some(end) = offset.checked_add(len as u64) else { return Ok(None) };
        let Some(held) = self.share_unverified(offset, end) else { return Ok(None) };
        if end > self.file.size() {
            return Ok(None);
        }
        let (mut at, mut first, mut next) = (offset, None, None);
        while at < end {
            let (lblk, inner) = place(self.fs(), at)?;
            let Mapping::Mapped { block, len, unwritten: false } = self.mapping(lblk)? else {
                return Ok(None);
            };
            let byte = self.fs().byte_of(block) + inner as u64;
            if next.is_some_and(|next| next != byte) {
                return Ok(None);
            }
            first.get_or_insert(byte);
            let run = u64::from(len) * u64::from(self.fs().block_size) - inner as u64;
            (at, next) = (at.saturating_add(run), Some(byte.saturating_add(run)));
        }
        Ok(first.and_then(|first| memory.lend(first, len)).map(|lent| (lent, held.kept())))
    }
}
