//! A block device in a regular file, on systems other than Linux.
//!
//! All I/O goes through the page cache, and nothing is given back to the file system of the host.
//! From open to drop it holds a lock on the file: one writer alone, or readers. After a failed
//! flush, every later flush fails.

use crate::block_device::check_range;
use crate::errno::{EBUSY, EEXIST, EINVAL, EIO, EISDIR, EROFS};
use crate::open_here::OpenHere;
use crate::{BlockDevice, Cached, DeviceError, FileOptions, IoUring, Op, Result, errno};
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// A regular file, as a device.
///
/// [`FileDevice::open`], [`FileDevice::create`] and [`FileOptions`] return one. From then on until
/// it is dropped, it holds a lock on the file: there is one device for writing, or any number for
/// reading. After a failed flush every later flush fails.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    path: PathBuf,
    size: u64,
    read_only: bool,
    /// Whether a flush has failed. One runs at a time: a second could miss what the first is told.
    flush_failed: Mutex<bool>,
    _open_here: OpenHere,
}

impl FileDevice {
    /// Returns the path by which the device was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the open file, for its attributes. Its content is the device's.
    pub fn file(&self) -> &File {
        &self.file
    }

    fn check_change(&self, op: Op, offset: u64, len: u64) -> Result<()> {
        if self.read_only {
            let source = io::ErrorKind::ReadOnlyFilesystem.into();
            return Err(DeviceError::new(op, offset, len, source));
        }
        check_range(op, self.size, offset, len)
    }
}

impl FileOptions {
    /// Opens a regular file that exists, and locks it until drop.
    ///
    /// # Errors
    /// [`Op::Open`] for a file that is missing, not permitted, empty, or none, and where direct I/O
    /// or io_uring is asked for; [`Op::Lock`] (EBUSY) while another opener uses it.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<FileDevice> {
        let path = path.as_ref();
        let file = OpenOptions::new().read(true).write(!self.read_only).open(path);
        self.finish(path, file.map_err(|e| explain(path, &e))?, None)
    }

    /// Creates a sparse file of `size` zero bytes, and drops the old content of an existing file.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open), and where the file system cannot hold a file of that
    /// size.
    pub fn create(&self, path: impl AsRef<Path>, size: u64) -> Result<FileDevice> {
        let path = path.as_ref();
        match self.create_new(path, size) {
            Err(e) if e.errno() == EEXIST => {
                let file = OpenOptions::new().read(true).write(true).open(path);
                self.finish(path, file.map_err(|e| explain(path, &e))?, Some(size))
            }
            made => made,
        }
    }

    /// Makes a sparse file of `size` zero bytes that was not there before.
    ///
    /// # Errors
    /// EEXIST if the path is taken: what it leads to is left alone. Also the errors of
    /// [`create`](Self::create).
    pub fn create_new(&self, path: impl AsRef<Path>, size: u64) -> Result<FileDevice> {
        let path = path.as_ref();
        let refuse = |why: &str| Err(DeviceError::at_path(Op::Open, path, EINVAL, why));
        if self.read_only {
            return refuse("cannot be made read-only");
        }
        if size == 0 {
            return refuse("a volume of 0 bytes");
        }
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path);
        self.finish(path, file.map_err(|e| explain(path, &e))?, Some(size))
    }

    /// Locks a file, and gives it a size where it is to have a new one.
    fn finish(&self, path: &Path, file: File, size: Option<u64>) -> Result<FileDevice> {
        let refuse = |errno, why: &str| Err(DeviceError::at_path(Op::Open, path, errno, why));
        let explain = |e: io::Error| explain(path, &e);
        let kind = file.metadata().map_err(explain)?.file_type();
        if kind.is_dir() {
            return refuse(EISDIR, "is a directory, not a file");
        }
        if !kind.is_file() {
            return refuse(EINVAL, "is not a regular file");
        }
        if self.cached == Cached::Nothing || self.io_uring == IoUring::On {
            return refuse(EINVAL, "direct I/O and io_uring are for Linux");
        }
        if !(self.unlocked && self.read_only) {
            lock(path, &file, self.read_only)?;
        }
        if size.is_some() && self.keeps_content && file.metadata().map_err(explain)?.len() > 0 {
            return refuse(EEXIST, "exists already");
        }
        if let Some(size) = size {
            // First to the new size, which the file system may refuse: its content is kept then.
            [size, 0, size].into_iter().try_for_each(|len| file.set_len(len)).map_err(explain)?;
        }
        let size = file.metadata().map_err(explain)?.len();
        if size == 0 {
            return refuse(EINVAL, "is empty (0 bytes), no volume");
        }
        let open_here = OpenHere::new(&file, path).map_err(explain)?;
        let (path, read_only) = (path.to_owned(), self.read_only);
        Ok(FileDevice { file, path, size, read_only, flush_failed: Mutex::new(false), _open_here: open_here })
    }
}

fn lock(path: &Path, file: &File, read_only: bool) -> Result<()> {
    let refuse = |errno, why: String| Err(DeviceError::at_path(Op::Lock, path, errno, why));
    match if read_only { file.try_lock_shared() } else { file.try_lock() } {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => refuse(EBUSY, "is in use: another opener has it".into()),
        Err(TryLockError::Error(e)) => refuse(errno::of(&e).unwrap_or(EIO), format!("cannot be locked: {e}")),
    }
}

fn explain(path: &Path, e: &io::Error) -> DeviceError {
    let errno = errno::of(e).unwrap_or(EIO);
    let why = match errno {
        EEXIST => "exists already".into(),
        EROFS => "lies on a read-only file system or device".into(),
        _ => e.to_string(),
    };
    DeviceError::at_path(Op::Open, path, errno, why)
}

impl BlockDevice for FileDevice {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn name(&self) -> Option<String> {
        Some(self.path.to_string_lossy().into_owned())
    }

    fn cached(&self) -> Option<Cached> {
        Some(Cached::All)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let len = buf.len() as u64;
        check_range(Op::Read, self.size, offset, len)?;
        read_exact_at(&self.file, buf, offset)
            .map_err(|e| DeviceError::new(Op::Read, offset, len, e).of(&self.path))
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        let len = data.len() as u64;
        self.check_change(Op::Write, offset, len)?;
        write_all_at(&self.file, data, offset)
            .map_err(|e| DeviceError::new(Op::Write, offset, len, e).of(&self.path))
    }

    fn flush(&self) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        let mut failed = self.flush_failed.lock().unwrap_or_else(PoisonError::into_inner);
        let flushed = match *failed {
            true => Err(io::Error::other("an earlier flush has failed")),
            false => self.file.sync_data(),
        };
        *failed = flushed.is_err();
        flushed.map_err(|e| DeviceError::new(Op::Flush, 0, 0, e).of(&self.path))
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.check_change(Op::Discard, offset, len)
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, buf, offset)
}

#[cfg(unix)]
fn write_all_at(file: &File, data: &[u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, data, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut buf: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !buf.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, buf, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => (buf, offset) = (&mut buf[n..], offset + n as u64),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

#[cfg(windows)]
fn write_all_at(file: &File, mut data: &[u8], mut offset: u64) -> io::Result<()> {
    while !data.is_empty() {
        match std::os::windows::fs::FileExt::seek_write(file, data, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => (data, offset) = (&data[n..], offset + n as u64),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
