//! Direct reads: mapped and written blocks come from the device in one batch, the rest is zeros.

use super::content::Content;
use super::io::{self, ReadPath};
use crate::error::Result;

impl Content<'_> {
    /// Reads from byte `offset` on into `buf`, past the page cache unless what is read has to be
    /// verified. Returns how many bytes there were before i_size.
    pub(super) fn read_direct(self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let _timer = self.fs().counters.read_direct.start();
        let end = offset.saturating_add(buf.len() as u64);
        let Some(_held) = self.share_unverified(offset, end) else { return self.read_cached(buf, offset) };
        let len = self.before_end(offset, buf.len());
        let Some(buf) = buf.get_mut(..len).filter(|_| len > 0) else { return Ok(0) };
        if self.file.pages_if_used().is_some() {
            // Dirty pages are newer than the device.
            self.write_back(self.blocks(offset, offset + len as u64)?)?;
        }
        self.read_held(buf, offset, ReadPath::Direct)
    }

    /// Reads all of `buf` from the device. The caller has locked the bytes. Returns how many.
    pub(super) fn read_held(self, buf: &mut [u8], offset: u64, path: ReadPath) -> Result<usize> {
        let len = buf.len();
        let ops = io::plan_read(self.fs(), offset, buf, |lblk| self.mapping(lblk))?;
        io::read(self.fs(), ops, path)?;
        Ok(len)
    }
}
