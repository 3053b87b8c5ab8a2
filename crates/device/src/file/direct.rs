//! O_DIRECT with any offset, length and address.
//!
//! Aligned requests go directly to the kernel. Others use a bounce buffer. A write of a part of a
//! sector reads the sector first and holds `partial_sector`, so that two concurrent writers of
//! different parts of one sector do not lose each other's bytes.

use super::FileDevice;
use crate::AlignedBuf;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::PoisonError;

/// Size of a bounce buffer in bytes; a multiple of every alignment.
pub(super) const BOUNCE: u64 = 1 << 20;

impl FileDevice {
    /// Returns whether O_DIRECT takes this memory for this offset.
    pub(super) fn is_aligned(&self, offset: u64, memory: &[u8]) -> bool {
        offset.is_multiple_of(self.align as u64)
            && memory.len().is_multiple_of(self.align)
            && memory.as_ptr().addr().is_multiple_of(self.align)
    }

    /// Reads a range that lies inside the device.
    pub(super) fn read_direct(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if self.is_aligned(offset, buf) {
            return self.file.read_exact_at(buf, offset);
        }
        let mut bounce = AlignedBuf::zeroed(self.window(offset, buf.len() as u64).len() as usize);
        let mut rest = buf;
        let mut at = offset;
        while !rest.is_empty() {
            let window = self.window(at, rest.len() as u64);
            let bytes = &mut bounce[..window.len() as usize];
            self.file.read_exact_at(bytes, window.start)?;
            let skip = (at - window.start) as usize;
            let n = rest.len().min(bytes.len() - skip);
            let (now, later) = rest.split_at_mut(n);
            now.copy_from_slice(&bytes[skip..skip + n]);
            at += n as u64;
            rest = later;
        }
        Ok(())
    }

    /// Writes a range that lies inside the device.
    pub(super) fn write_direct(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if self.is_aligned(offset, data) {
            return self.file.write_all_at(data, offset);
        }
        let align = self.align as u64;
        let partial = !offset.is_multiple_of(align) || !(data.len() as u64).is_multiple_of(align);
        let _guard = partial.then(|| self.partial_sector.lock().unwrap_or_else(PoisonError::into_inner));

        let mut bounce = AlignedBuf::zeroed(self.window(offset, data.len() as u64).len() as usize);
        let mut rest = data;
        let mut at = offset;
        while !rest.is_empty() {
            let window = self.window(at, rest.len() as u64);
            let bytes = &mut bounce[..window.len() as usize];
            let skip = (at - window.start) as usize;
            let n = rest.len().min(bytes.len() - skip);
            let end = skip + n;
            if skip > 0 {
                self.file.read_exact_at(&mut bytes[..self.align], window.start)?;
            }
            // The last sector is read too, unless it is also the first and that was read.
            if end < bytes.len() && (skip == 0 || bytes.len() > self.align) {
                let last = bytes.len() - self.align;
                self.file.read_exact_at(&mut bytes[last..], window.start + last as u64)?;
            }
            let (now, later) = rest.split_at(n);
            bytes[skip..end].copy_from_slice(now);
            self.file.write_all_at(bytes, window.start)?;
            at += n as u64;
            rest = later;
        }
        Ok(())
    }

    /// Returns the sectors around the first part, at most [`BOUNCE`] bytes, of a range.
    ///
    /// The size of the device is a multiple of the alignment, so a window never passes its end.
    fn window(&self, offset: u64, len: u64) -> BounceWindow {
        let align = self.align as u64;
        let start = offset / align * align;
        let end = (offset + len).next_multiple_of(align).min(start + BOUNCE);
        BounceWindow { start, end }
    }
}

/// A range of whole sectors.
struct BounceWindow {
    start: u64,
    end: u64,
}

impl BounceWindow {
    fn len(&self) -> u64 {
        self.end - self.start
    }
}
