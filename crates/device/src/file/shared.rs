//! I/O past the page cache on a device whose other I/O goes through it: another host may use the
//! same medium, and the page cache of this host knows nothing of its writes.

use super::FileDevice;
use crate::AlignedBuf;
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

/// The same file once more, opened for direct I/O.
#[derive(Debug)]
pub(super) struct SharedFile {
    file: File,
    /// The alignment of offset, length and address.
    align: usize,
}

impl SharedFile {
    /// Opens `file` once more. `None` where its file system has no direct I/O: its page cache is
    /// then the medium.
    pub(super) fn open(file: &File, align: usize, read_only: bool) -> Option<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(!read_only).custom_flags(OFlags::DIRECT.bits().cast_signed());
        let file = options.open(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
        (align <= AlignedBuf::ALIGN).then_some(Self { file, align })
    }

    fn fits(&self, offset: u64, len: usize) -> bool {
        offset.is_multiple_of(self.align as u64) && len.is_multiple_of(self.align)
    }
}

impl FileDevice {
    /// Reads past the page cache. `None` where that cannot be done for this range.
    pub(super) fn read_past_cache(&self, buf: &mut [u8], offset: u64) -> Option<io::Result<()>> {
        let shared = self.shared.as_ref().filter(|shared| shared.fits(offset, buf.len()))?;
        let mut own = AlignedBuf::zeroed(buf.len());
        let read = if_possible(shared.file.read_exact_at(&mut own, offset))?;
        Some(read.map(|()| buf.copy_from_slice(&own)))
    }

    /// Writes past the page cache. `None` where that cannot be done for this range.
    pub(super) fn write_past_cache(&self, data: &[u8], offset: u64) -> Option<io::Result<()>> {
        let shared = self.shared.as_ref().filter(|shared| shared.fits(offset, data.len()))?;
        let mut own = AlignedBuf::zeroed(data.len());
        own.copy_from_slice(data);
        if_possible(shared.file.write_all_at(&own, offset))
    }
}

/// Returns `None` for what a file system refuses that has opened the file for direct I/O.
fn if_possible(done: io::Result<()>) -> Option<io::Result<()>> {
    (done.as_ref().err().and_then(io::Error::raw_os_error) != Some(libc::EINVAL)).then_some(done)
}
