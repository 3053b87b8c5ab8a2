//! Direct reads: mapped and written blocks come from the device in one batch, the rest is zeros.

use super::content::Content;
use super::{ALL, io, max_size, place};
use crate::error::Result;
use crate::store::map::Mapping;

impl Content<'_> {
    /// Reads from byte `offset` on into `buf`, past the page cache. Returns how many bytes there
    /// were before i_size.
    pub(super) fn read_direct(self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let _timer = self.fs().counters.read_direct.start();
        let end = offset.saturating_add(buf.len() as u64);
        let _held = self.share(offset, end);
        let len = self.before_end(offset, buf.len());
        let Some(buf) = buf.get_mut(..len).filter(|_| len > 0) else { return Ok(0) };
        if self.file.pages_if_used().is_some() {
            // Dirty pages are newer than the device.
            self.write_back(self.blocks(offset, offset + len as u64)?)?;
        }
        self.read_held(buf, offset)
    }

    /// Reads all of `buf` from the device. The caller has locked the bytes. Returns how many.
    pub(super) fn read_held(self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let len = buf.len();
        let ops = io::plan_read(self.fs(), offset, buf, |lblk| self.mapping(lblk))?;
        io::read(self.fs(), ops)?;
        Ok(len)
    }

    /// Returns the first range at or behind `offset` and before i_size that is mapped and written:
    /// its start and end, in bytes.
    pub(crate) fn next_data(self, offset: u64) -> Result<Option<(u64, u64)>> {
        let fs = self.fs();
        // Dirty pages are allocated by this.
        self.write_back(ALL)?;
        let _held = self.share(offset, u64::MAX);
        let size = self.file.size().min(max_size(fs, self.node.flags()));
        let mut at = offset;
        while at < size {
            let (lblk, inner) = place(fs, at)?;
            let mapping = self.map(lblk)?;
            let run = u64::from(mapping.len()) * u64::from(fs.block_size) - inner as u64;
            let end = at.saturating_add(run).min(size);
            if matches!(mapping, Mapping::Mapped { unwritten: false, .. }) {
                return Ok(Some((at, end)));
            }
            at = end;
        }
        Ok(None)
    }
}
