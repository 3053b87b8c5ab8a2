//! The trait that every medium implements.
//!
//! Hazard: written bytes are volatile until a flush returns, and two calls at the same bytes may
//! mix. See [`BlockDevice`] for all that a caller may rely on.

use crate::{Cached, DeviceError, Mapped, Op, Result};
use std::fmt::{self, Debug};
use std::sync::Arc;

/// One read of a batch.
#[derive(Debug)]
pub struct ReadOp<'a> {
    /// First byte on the device.
    pub offset: u64,
    /// The buffer, which is filled completely.
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

/// Says of bytes of a device why nothing may be written to it any more.
pub type RepeatCheck = dyn Fn(&[u8]) -> std::result::Result<(), String> + Send + Sync;

/// Bytes of a device that tell whether this host may still write to it: see
/// [`BlockDevice::guard_repeats`].
#[derive(Clone)]
pub struct RepeatGuard {
    /// First byte on the device.
    pub offset: u64,
    /// Number of bytes.
    pub len: usize,
    /// Called with the bytes as they are now.
    pub check: Arc<RepeatCheck>,
}

impl Debug for RepeatGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RepeatGuard")
            .field("offset", &self.offset)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// A medium that is addressed by byte.
///
/// A device is shared between threads: every call takes `&self`. Two calls that overlap in time and
/// range may interleave in any way; callers keep them apart. A read or write transfers all bytes or
/// fails. The size changes only by [`measure`](BlockDevice::measure).
///
/// Written bytes are volatile until [`flush`](BlockDevice::flush) returns. Between two flushes the
/// medium may keep any part of the writes, in any order, torn at
/// [`atomic_write`](BlockDevice::atomic_write).
///
/// Six methods are required. The others have a default that fits a medium without the feature. A
/// device over another one passes calls on by [`forward_to!`](crate::forward_to).
///
/// # Examples
/// A device that no caller can change:
/// ```
/// use lanefs_device::{BlockDevice, DeviceError, MemDevice, Op, Result, forward_to};
///
/// #[derive(Debug)]
/// struct Frozen<D>(D);
///
/// impl<D> Frozen<D> {
///     fn refuse(op: Op, offset: u64, len: u64) -> Result<()> {
///         let source = std::io::ErrorKind::ReadOnlyFilesystem.into();
///         Err(DeviceError::new(op, offset, len, source))
///     }
/// }
///
/// impl<D: BlockDevice> BlockDevice for Frozen<D> {
///     forward_to!(0: size alignment read_at flush);
///
///     fn read_only(&self) -> bool {
///         true
///     }
///     fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
///         Self::refuse(Op::Write, offset, data.len() as u64)
///     }
///     fn discard(&self, offset: u64, len: u64) -> Result<()> {
///         Self::refuse(Op::Discard, offset, len)
///     }
/// }
///
/// let device = Frozen(MemDevice::from_bytes(vec![7; 4096]));
/// let mut byte = [0];
/// device.read_at(&mut byte, 4095)?;
/// assert_eq!(byte, [7]);
/// assert!(device.write_at(&byte, 0).is_err());
/// # Ok::<(), DeviceError>(())
/// ```
pub trait BlockDevice: Send + Sync + Debug {
    /// Returns the size in bytes.
    fn size(&self) -> u64;

    /// Reads the size of the medium again, and returns it. [`size`](Self::size) returns it from now
    /// on.
    ///
    /// A medium that has become smaller keeps its old size here, and so does one that cannot grow
    /// while it is open.
    ///
    /// # Errors
    /// The medium's failure to tell its size.
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
    /// no file.
    ///
    /// For a loop device it is the owner of the file behind it, or 65534, the kernel's user id for
    /// unknown users, where that cannot be told.
    fn owner(&self) -> Option<u32> {
        None
    }

    /// Returns the name by which the medium was opened, a path or a URL, if it was by one.
    fn name(&self) -> Option<String> {
        None
    }

    /// Returns which I/O goes through the page cache of the system, `None` for a medium that the
    /// system has no page cache for.
    fn cached(&self) -> Option<Cached> {
        None
    }

    /// Returns the mapping of a medium that is memory, `None` for any other.
    fn mapped(&self) -> Option<&Mapped> {
        None
    }

    /// Returns whether a lock that this host holds keeps all other hosts from writing to the
    /// medium, so that a claim of a volume by multiple mount protection need not wait for them.
    fn is_private(&self) -> bool {
        false
    }

    /// Returns whether each request waits for a network, so that callers should have several under
    /// way.
    fn is_remote(&self) -> bool {
        false
    }

    /// Fills `buf` with the bytes from `offset` on.
    ///
    /// # Errors
    /// A range beyond the end, or the medium's failure. `buf` may then hold any bytes.
    ///
    /// # Examples
    /// ```
    /// # use lanefs_device::{BlockDevice, MemDevice};
    /// let device = MemDevice::new(4096);
    /// device.write_at(b"ext4", 1024)?;
    /// let mut read = [0; 4];
    /// device.read_at(&mut read, 1024)?;
    /// assert_eq!(&read, b"ext4");
    /// # Ok::<(), lanefs_device::DeviceError>(())
    /// ```
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()>;

    /// Writes `data` at `offset`. The bytes are volatile until [`flush`](Self::flush) returns.
    ///
    /// # Errors
    /// A range beyond the end, a read-only device, or the medium's failure. A part of `data` may
    /// then have been written.
    fn write_at(&self, data: &[u8], offset: u64) -> Result<()>;

    /// Reads all `ops`, in any order and perhaps at the same time. After an error, any of them may
    /// have been done.
    ///
    /// # Errors
    /// The errors of [`read_at`](Self::read_at).
    ///
    /// # Examples
    /// ```
    /// # use lanefs_device::{BlockDevice, MemDevice, ReadOp};
    /// # let device = MemDevice::from_bytes((0..=255).collect());
    /// let (mut head, mut tail) = ([0; 2], [0; 2]);
    /// let mut ops = [ReadOp { offset: 0, buf: &mut head }, ReadOp { offset: 254, buf: &mut tail }];
    /// device.read_batch(&mut ops)?;
    /// assert_eq!((head, tail), ([0, 1], [254, 255]));
    /// # Ok::<(), lanefs_device::DeviceError>(())
    /// ```
    fn read_batch(&self, ops: &mut [ReadOp<'_>]) -> Result<()> {
        ops.iter_mut().try_for_each(|op| self.read_at(op.buf, op.offset))
    }

    /// Reads all `ops` as [`read_batch`](Self::read_batch) does, but bypasses the page cache of the
    /// system even for reads that would use it, unless all I/O does.
    ///
    /// # Errors
    /// The errors of [`read_at`](Self::read_at).
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

    /// Writes all `ops`, in any order and perhaps at the same time. After an error, any of them may
    /// have been done.
    ///
    /// # Errors
    /// The errors of [`write_at`](Self::write_at).
    ///
    /// # Examples
    /// ```
    /// # use lanefs_device::{BlockDevice, MemDevice, WriteOp};
    /// let device = MemDevice::new(16);
    /// device.write_batch(&[WriteOp { offset: 3, data: &[b"one ", b"write"] }])?;
    /// assert_eq!(&device.to_bytes()[3..12], b"one write");
    /// # Ok::<(), lanefs_device::DeviceError>(())
    /// ```
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

    /// Fills `buf` from `offset` with what the medium has now, past every cache of this host:
    /// another host may have written it. Slower than [`read_at`](Self::read_at).
    ///
    /// # Errors
    /// The errors of [`read_at`](Self::read_at).
    fn read_shared(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.read_batch_direct(&mut [ReadOp { offset, buf }])
    }

    /// Writes `data` at `offset` past every cache of this host, so that another host sees it.
    /// Volatile until [`flush`](Self::flush).
    ///
    /// # Errors
    /// The errors of [`write_at`](Self::write_at).
    fn write_shared(&self, data: &[u8], offset: u64) -> Result<()> {
        self.write_at(data, offset)
    }

    /// Has `guard` asked whenever a connection to the medium was lost, before anything is written
    /// on the next one. If it refuses, the device fails for good. Replaces an earlier guard. A
    /// medium without connections ignores it.
    fn guard_repeats(&self, guard: RepeatGuard) {
        let _ = guard;
    }

    /// Makes every write durable that has returned before this call.
    ///
    /// # Errors
    /// The medium's failure. Writes since the last successful flush may then be lost.
    fn flush(&self) -> Result<()>;

    /// Starts writeback of the dirty pages of a range, so that a later [`flush`](Self::flush) finds
    /// fewer.
    ///
    /// A hint: it makes nothing durable, and that flush reports a failure.
    fn start_writeback(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }

    /// Discards a range: the medium may drop its content and free its space. Reads of the range may
    /// return any bytes afterwards.
    ///
    /// # Errors
    /// A range beyond the end, a read-only device, or the medium's failure.
    fn discard(&self, offset: u64, len: u64) -> Result<()>;

    /// Makes a range read as zeros, in the cheapest way that the medium has.
    ///
    /// # Errors
    /// The errors of [`write_at`](Self::write_at).
    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        zero_by_writing(self, offset, len)
    }
}

/// A shared device is a device: a caller can pass a clone on and keep one.
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

    fn name(&self) -> Option<String> {
        (**self).name()
    }

    fn cached(&self) -> Option<Cached> {
        (**self).cached()
    }

    fn mapped(&self) -> Option<&Mapped> {
        (**self).mapped()
    }

    fn is_private(&self) -> bool {
        (**self).is_private()
    }
    fn is_remote(&self) -> bool {
        (**self).is_remote()
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

    fn read_shared(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        (**self).read_shared(buf, offset)
    }

    fn write_shared(&self, data: &[u8], offset: u64) -> Result<()> {
        (**self).write_shared(data, offset)
    }

    fn guard_repeats(&self, guard: RepeatGuard) {
        (**self).guard_repeats(guard);
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
