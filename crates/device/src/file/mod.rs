//! A block device in a regular file or a block special file.
//!
//! [`FileDevice`] says what it holds a lock on and what a failed flush means. `open` opens files,
//! `lock` is the lock between openers, `direct` lets O_DIRECT take calls that are not aligned,
//! `ring` is io_uring.
//!
//! Invariants:
//! - A [`FileDevice`] never extends its file. Its size changes only by `measure`, if another
//!   process has made the file longer.
//! - If small reads use the page cache and all other I/O is direct, the kernel keeps both coherent:
//!   a direct write invalidates the cached pages of its range (see `open::keeps_in_step` for where
//!   it does). No page is ever dirty, because no write goes through the cache.

mod direct;
mod flush;
mod lock;
mod lock_bytes;
mod mounted;
#[cfg(not(target_pointer_width = "64"))]
mod no_ring;
mod open;
mod owner;
mod piece;
#[cfg(target_pointer_width = "64")]
mod ring;
mod shared;
#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::at_next_lock;
mod vectored;

pub use lock::{claimed_device, lock_holders};
pub use mounted::{lengthen, resize_mounted};
#[cfg(not(target_pointer_width = "64"))]
use no_ring as ring;
pub use open::IN_THIS_PROCESS;
pub(crate) use open::remove_new;
#[cfg(all(test, not(loom)))]
pub(crate) use tests::{LOCKED_AT_REMOVAL, exercise};

use crate::block_device::{check_range, zero_by_writing};
use crate::open_here::OpenHere;
use crate::{BlockDevice, Cached, DeviceError, IoUring, Op, ReadOp, Result, WriteOp};
use flush::Flusher;
use rustix::fs::{FallocateFlags, FlockOperation, SeekFrom};
use rustix::io::{Errno, retry_on_intr};
use shared::SharedFile;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fmt, os::unix::fs::FileExt};

/// Bytes from which on a read is large.
const LARGE: u64 = 128 << 10;

/// Which reads of a device with [`Cached::SmallReads`] use the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reads {
    /// The small ones.
    BySize,
    /// None.
    Direct,
}

/// The kind of a file, with its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Regular,
    /// A block special file, with its logical block size in bytes.
    Block {
        sector: u64,
    },
}

/// A regular file or a block special file, as a device.
///
/// [`FileDevice::open`], [`FileDevice::create`] and [`FileOptions`](crate::FileOptions) return one.
/// From then on until it is dropped, it holds a lock on the file: there is one device for writing,
/// or any number for reading.
///
/// After a failed flush every later flush fails, because the kernel drops pages that it could not
/// write. A file that another process makes shorter causes failed reads, no crash.
pub struct FileDevice {
    file: File,
    path: PathBuf,
    kind: Kind,
    /// The user that owned the file, or the file behind the device, at open.
    owner: u32,
    size: AtomicU64,
    read_only: bool,
    /// It holds a lock of bytes beside that of the file.
    locks_bytes: bool,
    /// The alignment that O_DIRECT requires of offset, length and address; 1 for buffered I/O.
    align: usize,
    /// Where `file` goes past the page cache, the same for reads that do not.
    for_small_reads: Option<File>,
    /// Where `file` goes through the page cache, the same for I/O that does not.
    shared: Option<SharedFile>,
    /// Held by a write that reads a sector first, because it covers only a part of it.
    partial_sector: Mutex<()>,
    flusher: Flusher,
    io_uring: IoUring,
    rings: ring::Rings,
    _open_here: OpenHere,
}

impl FileDevice {
    /// Returns the path by which the device was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether the file is a block special file.
    pub fn is_block_special(&self) -> bool {
        matches!(self.kind, Kind::Block { .. })
    }

    /// Returns whether writes and large reads go past the page cache.
    pub fn is_direct(&self) -> bool {
        self.align > 1
    }

    /// Returns the file by which a read of `len` bytes goes through the page cache, if it does.
    fn reads_cached(&self, len: u64, reads: Reads) -> Option<&File> {
        if self.is_direct() {
            self.for_small_reads.as_ref().filter(|_| reads == Reads::BySize && len < LARGE)
        } else {
            Some(&self.file)
        }
    }

    fn read_one(&self, buf: &mut [u8], offset: u64, reads: Reads) -> Result<()> {
        let len = buf.len() as u64;
        check_range(Op::Read, self.size(), offset, len)?;
        let done = match self.reads_cached(len, reads) {
            Some(file) => file.read_exact_at(buf, offset),
            None => self.read_direct(offset, buf),
        };
        done.map_err(|e| DeviceError::new(Op::Read, offset, len, e))
    }

    /// Returns the open file, for its attributes, and for other code that maps it. Its content is
    /// the device's.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Checks that a range may be changed.
    pub(crate) fn check_change(&self, op: Op, offset: u64, len: u64) -> Result<()> {
        if self.read_only {
            return Err(
                DeviceError::new(op, offset, len, io::Error::from_raw_os_error(libc::EROFS)).of(&self.path)
            );
        }
        check_range(op, self.size(), offset, len)
    }

    fn fallocate(&self, mode: FallocateFlags, offset: u64, len: u64) -> rustix::io::Result<()> {
        retry_on_intr(|| rustix::fs::fallocate(&self.file, mode | FallocateFlags::KEEP_SIZE, offset, len))
    }

    fn discard_sectors(&self, sector: u64, offset: u64, len: u64) -> rustix::io::Result<()> {
        // Whole sectors inside the range: the rest may stay as it is.
        let first = offset.next_multiple_of(sector);
        let end = (offset + len) / sector * sector;
        if first < end { blkdiscard(&self.file, first, end - first) } else { Ok(()) }
    }
}

impl BlockDevice for FileDevice {
    fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// Reads the size again. Of a file that is used by direct I/O, whole units count.
    fn measure(&self) -> Result<u64> {
        let seek = || rustix::fs::seek(&self.file, SeekFrom::End(0));
        let end = retry_on_intr(seek).map_err(|e| DeviceError::new(Op::Open, 0, 0, e.into()))?;
        let whole = end / self.align as u64 * self.align as u64;
        Ok(self.size.fetch_max(whole, Ordering::Relaxed).max(whole))
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn alignment(&self) -> usize {
        self.align
    }

    fn sector_size(&self) -> u64 {
        match self.kind {
            Kind::Regular => 512,
            Kind::Block { sector } => sector,
        }
    }

    fn owner(&self) -> Option<u32> {
        Some(self.owner)
    }

    fn name(&self) -> Option<String> {
        Some(self.path.to_string_lossy().into_owned())
    }

    fn cached(&self) -> Option<Cached> {
        Some(match (self.is_direct(), &self.for_small_reads) {
            (false, _) => Cached::All,
            (true, Some(_)) => Cached::SmallReads,
            (true, None) => Cached::Nothing,
        })
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.read_one(buf, offset, Reads::BySize).map_err(|e| e.of(&self.path))
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        let len = data.len() as u64;
        self.check_change(Op::Write, offset, len)?;
        let done = if self.is_direct() {
            self.write_direct(offset, data)
        } else {
            self.file.write_all_at(data, offset)
        };
        done.map_err(|e| DeviceError::new(Op::Write, offset, len, e).of(&self.path))
    }

    fn read_batch(&self, ops: &mut [ReadOp<'_>]) -> Result<()> {
        self.read_vectored(ops, Reads::BySize).map_err(|e| e.of(&self.path))
    }

    fn read_batch_direct(&self, ops: &mut [ReadOp<'_>]) -> Result<()> {
        self.read_vectored(ops, Reads::Direct).map_err(|e| e.of(&self.path))
    }

    fn read_if_cached(&self, buf: &mut [u8], offset: u64) -> bool {
        use rustix::io::{ReadWriteFlags, preadv2};
        let Some(file) = &self.for_small_reads else { return false };
        let inside = check_range(Op::Read, self.size(), offset, buf.len() as u64).is_ok();
        let read =
            |buf: &mut [u8]| preadv2(file, &mut [io::IoSliceMut::new(buf)], offset, ReadWriteFlags::NOWAIT);
        inside && read(buf) == Ok(buf.len())
    }

    fn write_batch(&self, ops: &[WriteOp<'_>]) -> Result<()> {
        self.write_vectored(ops).map_err(|e| e.of(&self.path))
    }

    fn read_shared(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let len = buf.len() as u64;
        check_range(Op::Read, self.size(), offset, len)?;
        match self.read_past_cache(buf, offset) {
            Some(done) => done.map_err(|e| DeviceError::new(Op::Read, offset, len, e).of(&self.path)),
            None => self.read_batch_direct(&mut [ReadOp { offset, buf }]),
        }
    }

    fn write_shared(&self, data: &[u8], offset: u64) -> Result<()> {
        let len = data.len() as u64;
        self.check_change(Op::Write, offset, len)?;
        match self.write_past_cache(data, offset) {
            Some(done) => done.map_err(|e| DeviceError::new(Op::Write, offset, len, e).of(&self.path)),
            None => self.write_at(data, offset),
        }
    }

    fn flush(&self) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        self.flusher
            .flush(|| retry_on_intr(|| rustix::fs::fdatasync(&self.file)))
            .map_err(|e| DeviceError::new(Op::Flush, 0, 0, e.into()).of(&self.path))
    }

    fn start_writeback(&self, offset: u64, len: u64) {
        if !self.is_direct() {
            start_writeback(&self.file, offset, len);
        }
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.check_change(Op::Discard, offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let done = match self.kind {
            Kind::Regular => self.fallocate(FallocateFlags::PUNCH_HOLE, offset, len),
            Kind::Block { sector } => self.discard_sectors(sector, offset, len),
        };
        match done {
            Err(e) if !unsupported(e) => {
                Err(DeviceError::new(Op::Discard, offset, len, e.into()).of(&self.path))
            }
            _ => Ok(()),
        }
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.check_change(Op::Write, offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let modes: &[FallocateFlags] = match self.kind {
            Kind::Regular => &[FallocateFlags::PUNCH_HOLE],
            // The kernel writes the zeros itself where the hardware has no command for it.
            Kind::Block { sector } if offset.is_multiple_of(sector) && len.is_multiple_of(sector) => {
                &[FallocateFlags::PUNCH_HOLE, FallocateFlags::ZERO_RANGE]
            }
            Kind::Block { .. } => &[],
        };
        for &mode in modes {
            match self.fallocate(mode, offset, len) {
                Ok(()) => return Ok(()),
                Err(e) if unsupported(e) => {}
                Err(e) => return Err(DeviceError::new(Op::Write, offset, len, e.into()).of(&self.path)),
            }
        }
        zero_by_writing(self, offset, len)
    }
}

impl Drop for FileDevice {
    fn drop(&mut self) {
        // Closing would unlock too, but not while a child process that is between fork and exec
        // still has a copy of the descriptor.
        if self.locks_bytes {
            lock_bytes::unlock(&self.file);
        }
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

impl fmt::Debug for FileDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileDevice")
            .field("path", &self.path)
            .field("size", &self.size())
            .field("read_only", &self.read_only)
            .field("align", &self.align)
            .finish_non_exhaustive()
    }
}

/// Returns whether the error means that the medium lacks the operation, rather than that it failed.
fn unsupported(e: Errno) -> bool {
    matches!(e, Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY)
}

/// Begins writeback of the dirty pages of a range. What fails is told by the next fdatasync.
#[allow(unsafe_code)]
fn start_writeback(file: &File, offset: u64, len: u64) {
    use std::os::fd::AsRawFd;
    let (Ok(offset), Ok(len)) = (i64::try_from(offset), i64::try_from(len)) else { return };
    // SAFETY: the call takes numbers alone, and the descriptor is open.
    unsafe { libc::sync_file_range(file.as_raw_fd(), offset, len, libc::SYNC_FILE_RANGE_WRITE) };
}

/// Discards sectors of a block special file (BLKDISCARD).
#[allow(unsafe_code)]
fn blkdiscard(file: &File, offset: u64, len: u64) -> rustix::io::Result<()> {
    const BLKDISCARD: rustix::ioctl::Opcode = rustix::ioctl::opcode::none(0x12, 119);
    // SAFETY: BLKDISCARD takes a pointer to two u64 (first byte, length), which it only reads.
    let request = unsafe { rustix::ioctl::Setter::<BLKDISCARD, [u64; 2]>::new([offset, len]) };
    // SAFETY: the request lives through the call, and the kernel keeps no pointer to it.
    unsafe { rustix::ioctl::ioctl(file, request) }
}
