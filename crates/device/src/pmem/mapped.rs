//! The mapping of a volume, and slices of it.
//!
//! The bytes are shared with the kernel and perhaps with another process. The lock that every
//! opener takes (see `FileDevice`) keeps lanefs out of a volume that another program has locked.
//!
//! Invariant: inside this process no safe call can get a data race. Copies are not plain accesses
//! (see `copy`), and a lent slice excludes writers (see `lending`).
//!
//! Hazards:
//! - A program that takes no lock can change the bytes at any time.
//! - If another program shortens the mapped file, the next access beyond its end is a SIGBUS.

use super::copy::{PERSISTS, copy_in, copy_out};
use super::lending::Lending;
use crate::block_device::check_range;
use crate::{BlockDevice, DeviceError, FileDevice, Op, Result};
use rustix::fs::FallocateFlags;
use rustix::io::{Errno, retry_on_intr};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ops::{Deref, Range};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::{fmt, io, ptr, slice};

/// The failures that a completed write survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Persistence {
    /// A power cut: the file is persistent memory, mapped with MAP_SYNC, and every copy ends with
    /// its bytes out of the caches. A flush has nothing to do.
    Power,
    /// The end of the process, not that of the machine: the file lives in memory (tmpfs, ramfs,
    /// hugetlbfs). A flush has nothing to do.
    Process,
    /// The end of the process, and after a flush a power cut: the file is on a disk, and the
    /// mapping is of the page cache. A flush is an `fdatasync`, which also writes pages that were
    /// changed through a mapping.
    Flush,
}

/// The mapping of a [`PmemDevice`](crate::PmemDevice). Clones share it; the last clone or slice
/// unmaps the file.
#[derive(Clone)]
pub struct Mapped(Arc<Region>);

struct Region {
    base: *mut u8,
    len: usize,
    persistence: Persistence,
    lending: Lending,
    /// Keeps the lock until nothing uses the mapping.
    device: Arc<FileDevice>,
}

// SAFETY: the mapping belongs to no thread, and every access to it goes through the rules above.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, which nothing can reach any more: slices hold the region.
        let _ = unsafe { munmap(self.base.cast(), self.len) };
    }
}

impl Mapped {
    /// Maps the bytes of `window`.
    pub(super) fn new(device: Arc<FileDevice>, window: Range<u64>) -> Result<Self> {
        let refuse = |errno: i32, why: String| DeviceError::at_path(Op::Open, device.path(), errno, why);
        let Ok(len) = usize::try_from(window.end - window.start) else {
            return Err(refuse(libc::EFBIG, "is too large to be mapped".into()));
        };
        if !device.read_only() {
            take_space(&device, &window)
                .map_err(|e| refuse(e.raw_os_error(), format!("its space: {}", io::Error::from(e))))?;
        }
        let (base, persistence) = map(&device, window.start, len)
            .map_err(|e| refuse(e.raw_os_error(), format!("cannot be mapped: {}", io::Error::from(e))))?;
        Ok(Self(Arc::new(Region { base, len, persistence, lending: Lending::new(), device })))
    }

    pub(super) fn device(&self) -> &FileDevice {
        &self.0.device
    }

    /// Returns the length in bytes.
    pub fn size(&self) -> u64 {
        self.0.len as u64
    }

    /// Returns which failures a completed write survives.
    pub fn persistence(&self) -> Persistence {
        self.0.persistence
    }

    /// Copies the bytes from `offset` on into `buf`. During a concurrent write, each byte is the
    /// old or the new one.
    ///
    /// # Errors
    /// A range beyond the end.
    #[inline]
    pub fn copy_out(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let from = self.0.at(Op::Read, offset, buf.len())?;
        // SAFETY: the range lies in the mapping; `buf` is ours alone, so it is not in the mapping,
        // which hands out no `&mut`.
        unsafe { copy_out(buf.as_mut_ptr(), from, buf.len()) };
        Ok(())
    }

    /// Copies `data` to `offset` by streaming stores. When it returns, the bytes are out of this
    /// processor's caches and buffers: as durable as [`persistence`](Self::persistence) says.
    ///
    /// # Errors
    /// A range beyond the end; a device opened for reading (EROFS); a range of which a part is lent
    /// (EBUSY).
    #[inline]
    pub fn copy_in(&self, data: &[u8], offset: u64) -> Result<()> {
        self.write(offset, data.len(), |to| {
            // SAFETY: `to` has room for `data`, and no reference to its bytes exists (see `write`).
            // If `data` is a lent slice, it does not overlap, because lent bytes are not written.
            unsafe { copy_in(to, data.as_ptr(), data.len()) }
        })
    }

    /// Copies the pieces consecutively to `offset`.
    pub(super) fn gather_in(&self, offset: u64, len: usize, pieces: &[&[u8]]) -> Result<()> {
        self.write(offset, len, |to| {
            let mut at = 0;
            for piece in pieces {
                // SAFETY: as in `copy_in`; `len` is the sum of the pieces.
                unsafe { copy_in(to.add(at), piece.as_ptr(), piece.len()) };
                at += piece.len();
            }
        })
    }

    #[inline]
    fn write(&self, offset: u64, len: usize, fill: impl FnOnce(*mut u8)) -> Result<()> {
        let region = &*self.0;
        if region.device.read_only() {
            let source = io::Error::from_raw_os_error(libc::EROFS);
            return Err(DeviceError::new(Op::Write, offset, len as u64, source));
        }
        let to = region.at(Op::Write, offset, len)?;
        match region.lending.write(offset, offset + len as u64) {
            Some(_writing) => fill(to),
            None => {
                let source = io::Error::from_raw_os_error(libc::EBUSY);
                return Err(DeviceError::new(Op::Write, offset, len as u64, source));
            }
        }
        Ok(())
    }

    /// Lends a range as a slice, without a copy. Until it is dropped, writes that overlap fail with
    /// EBUSY, so its bytes do not change; other writes do not wait.
    ///
    /// Returns `None` for a range beyond the end, while 64 other ranges are lent, and where writers
    /// leave no gap for about a millisecond. [`copy_out`](Self::copy_out) reads the range then.
    pub fn lend(&self, offset: u64, len: usize) -> Option<Lent> {
        let start = self.0.at(Op::Read, offset, len).ok()?;
        let slot = self.0.lending.lend(offset, offset + len as u64)?;
        Some(Lent { start, len, slot, region: Arc::clone(&self.0) })
    }
}

impl Region {
    /// Returns the address of a range.
    #[inline]
    fn at(&self, op: Op, offset: u64, len: usize) -> Result<*mut u8> {
        check_range(op, self.len as u64, offset, len as u64)?;
        // SAFETY: `offset` is at most the length of the mapping.
        Ok(unsafe { self.base.add(offset as usize) })
    }
}

/// A range of a [`Mapped`] device, as a slice. Writes to the range fail while this value lives.
pub struct Lent {
    start: *const u8,
    len: usize,
    slot: u32,
    region: Arc<Region>,
}

// SAFETY: a shared slice and a number, which any thread may use and give back.
unsafe impl Send for Lent {}
// SAFETY: as above.
unsafe impl Sync for Lent {}

impl Deref for Lent {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the region keeps the range mapped, and `lending` keeps writers out of it.
        unsafe { slice::from_raw_parts(self.start, self.len) }
    }
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.region.lending.give_back(self.slot);
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lent({} bytes)", self.len)
    }
}

impl fmt::Debug for Mapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapped({:?}, {:?})", self.0.device, self.0.persistence)
    }
}

/// Fills the holes of a file: a store to a hole that the host has no room for would be a SIGBUS.
fn take_space(device: &FileDevice, window: &Range<u64>) -> rustix::io::Result<()> {
    if device.is_block_special() {
        return Ok(());
    }
    let len = window.end - window.start;
    let take = || rustix::fs::fallocate(device.file(), FallocateFlags::empty(), window.start, len);
    match retry_on_intr(take) {
        // A host that cannot take space in advance: the hazard stays.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        done => done,
    }
}

fn map(device: &FileDevice, start: u64, len: usize) -> rustix::io::Result<(*mut u8, Persistence)> {
    let prot = if device.read_only() { ProtFlags::READ } else { ProtFlags::READ | ProtFlags::WRITE };
    let map = |flags| {
        // SAFETY: a new mapping at an address that the kernel chooses.
        unsafe { mmap(ptr::null_mut(), len, prot, flags, device.file(), start) }
    };
    // Granted for persistent memory only.
    if PERSISTS && let Ok(base) = map(MapFlags::SHARED_VALIDATE | MapFlags::SYNC) {
        return Ok((base.cast(), Persistence::Power));
    }
    let base = map(MapFlags::SHARED)?;
    let file: BorrowedFd<'_> = std::os::fd::AsFd::as_fd(device.file());
    let persistence = match rustix::fs::fstatfs(file) {
        Ok(stat) if !device.is_block_special() && lives_in_memory(stat.f_type) => Persistence::Process,
        _ => Persistence::Flush,
    };
    Ok((base.cast(), persistence))
}

/// Returns whether a file system of this kind (`f_type` of statfs(2)) has no disk.
fn lives_in_memory(kind: rustix::fs::FsWord) -> bool {
    const RAMFS: u32 = 0x8584_58f6;
    const HUGETLBFS: u32 = 0x9584_58f6;
    const TMPFS: u32 = 0x0102_1994;
    [RAMFS, HUGETLBFS, TMPFS].contains(&(kind as u32))
}
