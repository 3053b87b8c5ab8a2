//! A volume in a mapped file: persistent memory, or a file that is treated as such.
//!
//! - Writes are streaming stores followed by a fence (see `copy`). They are durable when they
//!   return if the file is persistent memory; [`Persistence`] tells the guarantees of other files.
//! - A file opened for writing gets all its space at once, so that no later store finds the host
//!   full. Nothing is given back by a discard.
//! - It is locked against other openers as a [`FileDevice`] is, until the last slice of it is gone.
#![allow(unsafe_code)]

mod copy;
mod lending;
mod mapped;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

pub use mapped::{Lent, Mapped, Persistence};

use crate::block_device::check_range;
use crate::file::remove_new;
use crate::{BlockDevice, DeviceError, FileDevice, FileOptions, Op, Result, WriteOp};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// A file that is mapped into memory, as a device.
///
/// Reads and writes are copies, without a system call. On persistent memory, mapped with MAP_SYNC,
/// a write is durable when it returns; see [`Persistence`].
///
/// # Examples
/// ```
/// use lanefs_device::{BlockDevice, PmemDevice};
///
/// # let dir = tempfile::tempdir()?;
/// let device = PmemDevice::create(dir.path().join("pmem.img"), 1 << 20)?;
/// device.write_at(b"by a copy", 4096)?;
/// let mapped = device.mapped().expect("a PmemDevice is mapped");
/// assert_eq!(&mapped.lend(4096, 9).unwrap()[..], b"by a copy");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PmemDevice {
    mapped: Mapped,
}

impl PmemDevice {
    /// Maps a file that exists, for reading and writing.
    ///
    /// # Errors
    /// The errors of [`FileOptions::open`], and where the file has holes that the host has no room
    /// for, or cannot be mapped.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::over(Arc::new(FileDevice::open(path)?))
    }

    /// Maps a file that exists, for reading, beside any number of other readers.
    ///
    /// # Errors
    /// The errors of [`FileOptions::open`].
    pub fn open_read_only(path: impl AsRef<Path>) -> Result<Self> {
        Self::over(Arc::new(FileDevice::open_read_only(path)?))
    }

    /// Creates a file of `size` zero bytes, none of them a hole, and maps it. Drops the content of
    /// an existing file.
    ///
    /// # Errors
    /// The errors of [`FileOptions::create`] and [`open`](Self::open).
    pub fn create(path: impl AsRef<Path>, size: u64) -> Result<Self> {
        let path = path.as_ref();
        let (device, is_new) = match FileDevice::create_new(path, size) {
            Err(e) if e.errno() == libc::EEXIST => (FileDevice::create(path, size)?, false),
            made => (made?, true),
        };
        let device = Arc::new(device);
        let made = Self::over(Arc::clone(&device));
        if made.is_err() && is_new {
            remove_new(path, device.file());
        }
        made
    }

    /// Maps the file, or the part of it, that `options` open. O_DIRECT means nothing to a mapping.
    pub(crate) fn open_with(options: &FileOptions, path: &Path) -> Result<Self> {
        let device = options.clone().direct(false).open(path)?;
        let window = options.used().unwrap_or(0..device.size());
        let page = rustix::param::page_size() as u64;
        if !window.start.is_multiple_of(page) {
            let why =
                format!("begins at byte {}, and a mapping begins at a multiple of {page}", window.start);
            return Err(DeviceError::at_path(Op::Open, path, libc::EINVAL, why));
        }
        Ok(Self { mapped: Mapped::new(Arc::new(device), window)? })
    }

    fn over(device: Arc<FileDevice>) -> Result<Self> {
        let all = 0..device.size();
        Ok(Self { mapped: Mapped::new(device, all)? })
    }
}

impl BlockDevice for PmemDevice {
    fn size(&self) -> u64 {
        self.mapped.size()
    }

    fn read_only(&self) -> bool {
        self.mapped.device().read_only()
    }

    fn sector_size(&self) -> u64 {
        self.mapped.device().sector_size()
    }

    /// Returns how many bytes one store of the processor writes atomically.
    fn atomic_write(&self) -> usize {
        8
    }

    fn owner(&self) -> Option<u32> {
        self.mapped.device().owner()
    }

    fn mapped(&self) -> Option<&Mapped> {
        Some(&self.mapped)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.mapped.copy_out(buf, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.mapped.copy_in(data, offset)
    }

    fn write_batch(&self, ops: &[WriteOp<'_>]) -> Result<()> {
        ops.iter().try_for_each(|op| {
            let len = usize::try_from(op.len())
                .map_err(|_| DeviceError::out_of_range(Op::Write, op.offset, op.len(), self.size()))?;
            self.mapped.gather_in(op.offset, len, op.data)
        })
    }

    fn flush(&self) -> Result<()> {
        match self.mapped.persistence() {
            Persistence::Power | Persistence::Process => Ok(()),
            Persistence::Flush => self.mapped.device().flush(),
        }
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        check_range(Op::Discard, self.size(), offset, len)?;
        self.mapped.device().check_change(Op::Discard, 0, 0)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        check_range(Op::Write, self.size(), offset, len)?;
        let mut done = 0;
        while done < len {
            let n = (len - done).min(ZEROS.len() as u64);
            self.write_at(&ZEROS[..n as usize], offset + done)?;
            done += n;
        }
        Ok(())
    }
}

impl fmt::Debug for PmemDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PmemDevice({:?})", self.mapped)
    }
}
