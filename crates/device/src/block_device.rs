//! The trait that every medium implements.

use crate::{Cached, DeviceError, Mapped, Op, Result};
use std::fmt::Debug;
use std::sync::Arc;

/// One read of a batch.
#[derive(Debug)]
pub struct ReadOp<'a> {
    /// First byte on the device.
    pub offset: u64,
    /// Filled whole.
    pub buf: &'a mut [u8],
}

/// One write of a batch: pieces of memory that lie one behind the other on the device.
#[derive(Debug, Clone, Copy)]
pub struct WriteOp<'a> {
    /// First byte on the device.
    pub offset: u64,
    /// The bytes, gathered in order.
    pub data: &'a [&'a [u8]],
}

impl WriteOp<'_> {
    /// Returns the length of the write in bytes.
    pub fn len(&self) -> u64 {
        self.data.iter().map(|d| d.len() as u64).sum()
    }

    /// Returns whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A medium, addressed by byte, whose size changes only by [`measure`](BlockDevice::measure).
/// Shared between threads: every call takes `&self`.
///
/// Reads and writes are whole or an error. Two calls that overlap in time and range may
/// interleave in any way; callers keep them apart.
pub trait BlockDevice: Send + Sync + Debug {
    /// Returns the size in bytes.
    fn size(&self) -> u64;

    /// Looks again how large the medium is, and returns that: [`size`](Self::size) from now on. A
    /// medium that has become smaller keeps its size, and so does one that cannot grow while it is
    /// open.
    ///
    /// # Errors
    /// The size cannot be read.
    fn measure(&self) -> Result<u64> {
        Ok(self.size())
    }

    /// Returns whether writes are refused.
    fn read_only(&self) -> bool;

    /// Returns the alignment that offsets, lengths and memory addresses need: 1 except for
    /// O_DIRECT.
    fn alignment(&self) -> usize {
        1
    }

    /// Returns the logical sector in bytes: the unit of a partition table of the medium.
    fn sector_size(&self) -> u64 {
        512
    }

    /// Returns the unit in bytes, a power of two, that a power cut does not tear: each aligned unit
    /// is written whole or not at all.
    fn atomic_write(&self) -> usize {
        512
    }

    /// Returns the user that owned the file of the medium when it was opened, `None` where there is
    /// no file. Of a loop device it is the owner of the file behind it; 65534, the kernel's user id
    /// for others, where that cannot be told.
    fn owner(&self) -> Option<u32> {
        None
    }

    /// Returns what of its I/O goes through the page cache of the system, `None` where that has no
    /// page cache for the medium.
    fn cached(&self) -> Option<Cached> {
        None
    }

    /// Returns the mapping of a medium that is memory, `None` for any other.
    fn mapped(&self) -> Option<&Mapped> {
        None
    }

    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// A range beyond the end, or the medium's failure.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()>;

    /// Writes `data` at `offset`. Volatile until [`flush`](Self::flush).
    ///
    /// # Errors
    /// A range beyond the end, a read-only device, or the medium's failure.
    fn write_at(&self, data: &[u8], offset: u64) -> Result<()>;

    /// Runs all `ops`, in any order. On an error any of them may have been done.
    ///
    /// # Errors
    /// The errors of [`read_at`](Self::read_at).
    fn read_batch(&self, ops: &mut [ReadOp<'_>]) -> Result<()> {
        ops.iter_mut().try_for_each(|op| self.read_at(op.buf, op.offset))
    }

    /// Runs all `ops` as [`read_batch`](Self::read_batch) does, but bypasses the page cache of the
    /// system even for reads that would use it, unless all I/O does.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at).
    fn read_batch_direct(&self, ops: &mut [ReadOp<'_>]) -> Result<()> {
        self.read_batch(ops)
    }

    /// Fills `buf` from `offset` without I/O, where the system's page cache has all of it. Returns
    /// whether it had: otherwise `buf` holds any bytes. For a device whose large reads bypass that
    /// cache, and a caller that reads much that may just have been written.
    fn read_if_cached(&self, buf: &mut [u8], offset: u64) -> bool {
        let _ = (buf, offset);
        false
    }

    /// Runs all `ops`, in any order. On an error any of them may have been done.
    ///
    /// # Errors
    /// The errors of [`write_at`](Self::write_at).
    fn write_batch(&self, ops: &[WriteOp<'_>]) -> Result<()> {
        for op in ops {
            let mut at = op.offset;
            for piece in op.data {
                self.write_at(piece, at)?;
                at += piece.len() as u64;
            }
        }
        Ok(())
    }

    /// Makes everything whose write has returned durable.
    ///
    /// # Errors
    /// The medium's failure. Writes since the last successful flush may then be lost.
    fn flush(&self) -> Result<()>;

    /// Has the system begin to write back what its page cache has of a range, so that a later
    /// [`flush`](Self::flush) finds less to do. A hint: it makes nothing durable, and a failure is
    /// told by that flush.
    fn start_writeback(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }

    /// Discards a range: the medium may drop its content. Reads return any bytes afterwards.
    ///
    /// # Errors
    /// A range beyond the end, a read-only device, or the medium's failure.
    fn discard(&self, offset: u64, len: u64) -> Result<()>;

    /// Makes a range read as zeros, by the cheapest way that the medium has.
    ///
    /// # Errors
    /// The errors of [`write_at`](Self::write_at).
    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        zero_by_writing(self, offset, len)
    }
}

/// A shared device is a device, so that a caller can pass one on and keep a reference.
impl<D: BlockDevice + ?Sized> BlockDevice for Arc<D> {
    fn size(&self) -> u64 {
        (**self).size()
    }

    fn measure(&self) -> Result<u64> {
        (**self).measure()
    }

    fn read_only(&self) -> bool {
        (**self).read_only()
    }

    fn alignment(&self) -> usize {
        (**self).alignment()
    }

    fn sector_size(&self) -> u64 {
        (**self).sector_size()
    }

    fn atomic_write(&self) -> usize {
        (**self).atomic_write()
    }

    fn owner(&self) -> Option<u32> {
        (**self).owner()
    }

    fn cached(&self) -> Option<Cached> {
        (**self).cached()
    }

    fn mapped(&self) -> Option<&Mapped> {
        (**self).mapped()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        (**self).read_at(buf, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        (**self).write_at(data, offset)
    }

    fn read_batch(&self, ops: &mut [ReadOp<'_>]) -> Result<()> {
        (**self).read_batch(ops)
    }

    fn read_batch_direct(&self, ops: &mut [ReadOp<'_>]) -> Result<()> {
        (**self).read_batch_direct(ops)
    }

    fn read_if_cached(&self, buf: &mut [u8], offset: u64) -> bool {
        (**self).read_if_cached(buf, offset)
    }

    fn write_batch(&self, ops: &[WriteOp<'_>]) -> Result<()> {
        (**self).write_batch(ops)
    }

    fn flush(&self) -> Result<()> {
        (**self).flush()
    }

    fn start_writeback(&self, offset: u64, len: u64) {
        (**self).start_writeback(offset, len);
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        (**self).discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        (**self).write_zeroes(offset, len)
    }
}

/// Writes zeros: [`BlockDevice::write_zeroes`] for a medium without a faster operation.
pub(crate) fn zero_by_writing<D: BlockDevice + ?Sized>(device: &D, offset: u64, len: u64) -> Result<()> {
    check_range(Op::Write, device.size(), offset, len)?;
    let zeros = crate::AlignedBuf::zeroed(len.min(1 << 20) as usize);
    let mut done = 0;
    while done < len {
        let n = (len - done).min(zeros.len() as u64);
        device.write_at(&zeros[..n as usize], offset + done)?;
        done += n;
    }
    Ok(())
}

/// Checks that a range lies inside a device of `size` bytes.
///
/// # Errors
/// [`DeviceError`]: out of range.
pub fn check_range(op: Op, size: u64, offset: u64, len: u64) -> Result<()> {
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        _ => Err(DeviceError::out_of_range(op, offset, len, size)),
    }
}
