//! The errors of a device.

use crate::errno;
use crate::nbd::{NbdError, NbdFailure};
use crate::rbd::{RbdError, RbdFailure};
use std::path::{Path, PathBuf};
use std::{fmt, io};

/// The result of a device operation.
pub type Result<T> = std::result::Result<T, DeviceError>;

/// The operation that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Opening the device.
    Open,
    /// Taking the lock that keeps a second opener out.
    Lock,
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Making writes durable.
    Flush,
    /// Giving space back.
    Discard,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Op::Open => "open",
            Op::Lock => "lock",
            Op::Read => "read",
            Op::Write => "write",
            Op::Flush => "flush",
            Op::Discard => "discard",
        })
    }
}

/// A failed device operation: the request, its place, and the system's error.
///
/// A failure to open or lock displays as one line that starts with the path.
///
/// # Examples
/// ```
/// use lanefs_device::{BlockDevice, MemDevice, Op, errno};
///
/// let device = MemDevice::new(4096);
/// let e = device.read_at(&mut [0; 512], 4000).unwrap_err();
/// assert_eq!((e.op, e.offset, e.len, e.errno()), (Op::Read, 4000, 512, errno::EIO));
/// assert_eq!(
///     e.to_string(),
///     "read of 512 bytes at byte 4000: beyond the end of the device (4096 bytes)"
/// );
/// ```
#[derive(Debug)]
pub struct DeviceError {
    /// The failed operation.
    pub op: Op,
    /// First byte of the range, 0 for operations on the whole device.
    pub offset: u64,
    /// Length of the range in bytes, 0 for operations on the whole device.
    pub len: u64,
    /// The system's reason.
    pub source: io::Error,
    /// The path of the device, where it has one. A failure to open or lock has it in `source`.
    pub device: Option<Box<Path>>,
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { op, offset, len, source, device } = self;
        if matches!(op, Op::Open | Op::Lock) {
            return write!(f, "{source}");
        }
        write!(f, "{op}")?;
        if *op != Op::Flush {
            write!(f, " of {len} bytes at byte {offset}")?;
        }
        if let Some(device) = device {
            let device = crate::without_password(device.as_os_str());
            write!(f, " of {}", Path::new(&device).display())?;
        }
        write!(f, ": {source}")
    }
}

impl std::error::Error for DeviceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

impl DeviceError {
    /// Returns a failure of `op` on `len` bytes at `offset`.
    pub fn new(op: Op, offset: u64, len: u64, source: io::Error) -> Self {
        Self { op, offset, len, source, device: None }
    }

    /// Returns the error with the path of the device, which its message then names.
    #[must_use]
    pub fn of(self, device: &Path) -> Self {
        Self { device: Some(device.into()), ..self }
    }

    /// Returns the failure of a range that does not lie inside a device of `size` bytes.
    pub fn out_of_range(op: Op, offset: u64, len: u64, size: u64) -> Self {
        let msg = format!("beyond the end of the device ({size} bytes)");
        Self::new(op, offset, len, io::Error::new(io::ErrorKind::UnexpectedEof, msg))
    }

    /// Returns the failure of a refused open or lock of `path`: `reason` follows the path in the
    /// message.
    pub(crate) fn at_path(op: Op, path: &Path, errno: i32, reason: impl Into<String>) -> Self {
        let kind = errno::kind(errno);
        let refused = Refused { path: path.to_owned(), reason: reason.into(), errno };
        Self::new(op, 0, 0, io::Error::new(kind, refused))
    }

    /// Returns the failure of an NBD client, `None` if the error is none.
    pub fn nbd(&self) -> Option<&NbdError> {
        self.source.get_ref()?.downcast_ref::<NbdFailure>().map(|failure| &failure.why)
    }

    /// Returns the failure of an RBD image, `None` if the error is none.
    pub fn rbd(&self) -> Option<&RbdError> {
        self.source.get_ref()?.downcast_ref::<RbdFailure>().map(|failure| &failure.why)
    }

    /// Returns the errno with which a system call of Linux would have failed, EIO if there is none.
    pub fn errno(&self) -> i32 {
        let refused = || self.source.get_ref()?.downcast_ref::<Refused>().map(|r| r.errno);
        let remote = || self.nbd().map(NbdError::errno).or_else(|| self.rbd().map(RbdError::errno));
        errno::of(&self.source).or_else(refused).or_else(remote).unwrap_or(errno::EIO)
    }
}

/// The reason why a path was not opened. The number is kept beside the words, because `io::Error`
/// has room for one.
#[derive(Debug)]
struct Refused {
    path: PathBuf,
    reason: String,
    errno: i32,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = crate::without_password(self.path.as_os_str());
        write!(f, "{}: {}", Path::new(&path).display(), self.reason)
    }
}

impl std::error::Error for Refused {}
