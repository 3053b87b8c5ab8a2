//! Errors of the engine.
//!
//! Three families: the request cannot be met (`NotFound`, `Exists`, ...), the volume is not valid
//! ext4 (`Format`, `Corrupt`, ...: with structure, number and rule), or the medium failed
//! (`Device`, `Journal`). Operations on paths wrap these in [`OperationError`], which names the
//! path; those on open files and inodes return them bare. [`Error::errno`] returns the number that
//! the kernel's ext4 returns.

mod corrupt;
mod dir;
mod indirect;
mod mmp;
mod operation;
mod resize;
mod verity;
mod xattr;

pub use corrupt::{Corrupt, Zone};
pub use dir::DirError;
pub use indirect::IndirectError;
pub use mmp::{MmpError, MmpHolder};
pub use operation::OperationError;
pub(crate) use operation::OrCannot;
pub use resize::ResizeError;
pub use verity::VerityError;
pub use xattr::XattrError;

use lanefs_device::{DeviceError, Op};
use lanefs_format::FormatError;
use lanefs_journal::JournalError;
use std::io;

/// Result of an engine operation.
pub type Result<T> = std::result::Result<T, Error>;

/// A failed operation.
///
/// An operation on a path fails with [`Error::Operation`], which names the path. Match on
/// [`kind`](Self::kind), which is the same whether or not there was a path:
///
/// ```
/// use lanefs::Error;
/// # let volume = lanefs::Volume::in_memory(16 << 20)?;
/// match volume.create_dir("/spool").map_err(Error::into_kind) {
///     Ok(()) | Err(Error::Exists) => {}
///     Err(e) => return Err(e),
/// }
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation on a path failed.
    #[error(transparent)]
    Operation(Box<OperationError>),
    /// No such name (ENOENT).
    #[error("No such file or directory")]
    NotFound,
    /// The name is taken (EEXIST).
    #[error("File exists")]
    Exists,
    /// A component of the path is not a directory (ENOTDIR).
    #[error("Not a directory")]
    NotDir,
    /// A directory where none is allowed (EISDIR).
    #[error("Is a directory")]
    IsDir,
    /// The directory has entries (ENOTEMPTY).
    #[error("Directory not empty")]
    NotEmpty,
    /// No free block (ENOSPC).
    #[error("No space left on device")]
    NoSpace,
    /// No free inode (ENOSPC). No free block helps.
    #[error("No space left on device (no inode is free)")]
    NoInodes,
    /// A directory whose index or size is as large as it may be (ENOSPC). No free block helps.
    #[error("No space left on device (the directory can hold no more names)")]
    DirFull,
    /// Extended attributes that fit neither in the inode nor in its block (ENOSPC). No free space
    /// helps.
    #[error("No space left on device (the attributes fit neither in the inode nor in a block)")]
    XattrsTooLarge,
    /// A name of more than 255 bytes (ENAMETOOLONG).
    #[error("File name too long ({len} bytes, at most 255)")]
    NameTooLong {
        /// Length in bytes.
        len: usize,
    },
    /// A link to a file of another volume (EXDEV).
    #[error("Invalid cross-device link")]
    OtherVolume,
    /// i_links_count is at its bound (EMLINK).
    #[error("Too many links")]
    TooManyLinks,
    /// The volume or the handle is read-only (EROFS).
    #[error("Read-only file system")]
    ReadOnly,
    /// An immutable or append-only inode, or a file with a hash tree (EPERM).
    #[error("Operation not permitted ({0})")]
    NotPermitted(&'static str),
    /// An attribute that this kind of inode does not have (EACCES).
    #[error("Permission denied ({0})")]
    AccessDenied(&'static str),
    /// The file is not open for this (EBADF).
    #[error("Bad file descriptor ({0})")]
    BadHandle(&'static str),
    /// Nothing at or behind this place of a file (ENXIO).
    #[error("No such device or address (offset {offset} of a file of {size} bytes)")]
    NothingThere {
        /// The byte.
        offset: u64,
        /// i_size.
        size: u64,
    },
    /// A non-blocking call would have to wait (EAGAIN).
    #[error("Resource temporarily unavailable")]
    WouldBlock,
    /// An argument that makes no sense (EINVAL).
    #[error("Invalid argument ({0})")]
    Invalid(&'static str),
    /// No such extended attribute (ENODATA).
    #[error("No data available")]
    NoData,
    /// A value longer than 65,536 bytes (E2BIG).
    #[error("Argument list too long (a value of {len} bytes)")]
    ValueTooBig {
        /// Length in bytes.
        len: usize,
    },
    /// There is no memory for the content (ENOMEM).
    #[error("Cannot allocate memory ({bytes} bytes)")]
    NoMemory {
        /// Bytes read so far and of the next piece.
        bytes: usize,
    },
    /// A buffer or value out of bounds (ERANGE).
    #[error("Numerical result out of range")]
    Range,
    /// A file larger than its block map can hold (EFBIG).
    #[error("File too large")]
    FileTooBig,
    /// More than 40 symbolic links in a path (ELOOP).
    #[error("Too many levels of symbolic links")]
    Loop,
    /// A directory used as the root, or moved below itself (EBUSY or EINVAL).
    #[error("Device or resource busy")]
    Busy,
    /// A file that is open for writing, or that gets a hash tree (ETXTBSY).
    #[error("Text file busy")]
    TextBusy,
    /// The inode has been deleted (ESTALE).
    #[error("Stale file handle (inode {0})")]
    Stale(u32),
    /// A feature, or an operation on it, that lanefs does not write (EOPNOTSUPP).
    #[error("Operation not supported ({0})")]
    NotSupported(String),
    /// A mount option that lanefs does not know, whose value is not allowed, or that asks for
    /// something that lanefs does not do (EINVAL).
    #[error("mount option {word}: {why}")]
    MountOption {
        /// The option with its value.
        word: String,
        /// What is wrong with it.
        why: String,
    },
    /// Content that was written earlier could not be written out (EIO).
    #[error("Input/output error (content of inode {ino} could not be written out earlier)")]
    Lost {
        /// The file's inode.
        ino: u32,
    },
    /// A truncation failed after it had changed the size, and the blocks behind the new size are
    /// not freed (EIO): the file does not grow over them.
    #[error("Input/output error (a truncation of inode {ino} has failed: truncate it again)")]
    CutShort {
        /// The file's inode.
        ino: u32,
    },
    /// A volume cannot be made so (EINVAL).
    #[error(transparent)]
    Mkfs(lanefs_mkfs::MkfsError),
    /// A setting that the superblock does not take (EINVAL).
    #[error("{0}")]
    Tuning(#[from] lanefs_format::TuningError),
    /// A device too small to hold a volume.
    #[error("a device of {size} bytes is {rule}")]
    NotVolume {
        /// Size of the device in bytes.
        size: u64,
        /// What is wrong with it.
        rule: &'static str,
    },
    /// A name that no extended attribute can have.
    #[error("Operation not supported (an attribute's name: {0})")]
    XattrName(#[from] lanefs_format::xattr::NameError),
    /// An extended attribute that breaks a rule.
    #[error(transparent)]
    Xattr(#[from] XattrError),
    /// A directory that breaks a rule.
    #[error(transparent)]
    Dir(#[from] DirError),
    /// An extent tree that breaks a rule.
    #[error(transparent)]
    Extent(#[from] lanefs_format::extent::ExtentError),
    /// A map of indirect blocks that breaks a rule.
    #[error(transparent)]
    Indirect(#[from] IndirectError),
    /// A file that is not what its hash tree says, or whose tree breaks a rule (EIO).
    #[error(transparent)]
    Verity(#[from] VerityError),
    /// A size that the volume cannot be given (EINVAL).
    #[error(transparent)]
    Resize(#[from] ResizeError),
    /// A volume with multiple mount protection that another host uses (EBUSY), or has taken from
    /// this one (EIO).
    #[error(transparent)]
    Mmp(Box<MmpError>),
    /// The volume has been closed.
    #[error("the volume is closed")]
    Closed,
    /// A structure of the volume breaks a rule of the format.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// Structures of the volume contradict each other.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// A thread of the volume could not be started (the system's error, such as EAGAIN).
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
    /// The journal failed or was aborted.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The medium failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl Error {
    /// Returns whether the medium or the journal failed, and no structure is damaged.
    pub(crate) fn is_of_medium(&self) -> bool {
        match self {
            Error::Device(_) => true,
            Error::Journal(e) => !matches!(e, JournalError::BlockOutOfRange { .. }),
            _ => false,
        }
    }

    /// Returns the errno of the kernel's ext4 for this failure: Linux's number, on every system.
    pub fn errno(&self) -> i32 {
        use lanefs_device::errno::*;
        match self.kind() {
            Error::Operation(_) => EIO,
            Error::NotFound => ENOENT,
            Error::Exists => EEXIST,
            Error::NotDir => ENOTDIR,
            Error::IsDir => EISDIR,
            Error::NotEmpty => ENOTEMPTY,
            Error::NoSpace | Error::NoInodes | Error::DirFull | Error::XattrsTooLarge => ENOSPC,
            Error::NameTooLong { .. } => ENAMETOOLONG,
            Error::OtherVolume => EXDEV,
            Error::TooManyLinks => EMLINK,
            Error::ReadOnly => EROFS,
            Error::NotPermitted(_) => EPERM,
            Error::AccessDenied(_) => EACCES,
            Error::BadHandle(_) => EBADF,
            Error::Invalid(_) | Error::MountOption { .. } => EINVAL,
            Error::NothingThere { .. } => ENXIO,
            Error::WouldBlock => EAGAIN,
            Error::NoData => ENODATA,
            Error::ValueTooBig { .. } => E2BIG,
            Error::NoMemory { .. } => ENOMEM,
            Error::Range => ERANGE,
            Error::FileTooBig => EFBIG,
            Error::Loop => ELOOP,
            Error::Busy => EBUSY,
            Error::TextBusy => ETXTBSY,
            Error::Stale(_) => ESTALE,
            Error::NotSupported(_) => EOPNOTSUPP,
            Error::Closed => ENODEV,
            Error::Resize(ResizeError::BeyondDevice { .. }) => ENOSPC,
            Error::Resize(ResizeError::Unsound { .. }) => EUCLEAN,
            Error::NotVolume { .. } | Error::Mkfs(_) | Error::Resize(_) | Error::Tuning(_) => EINVAL,
            Error::XattrName(e) => xattr_name_errno(e),
            Error::Mmp(e) if e.is_in_use() => EBUSY,
            Error::Mmp(e) if matches!(**e, MmpError::Place { .. }) => EUCLEAN,
            // No ext4 volume at all, and not a damaged one.
            Error::Format(FormatError::BadMagic { .. }) => EINVAL,
            Error::Format(_)
            | Error::Corrupt(_)
            | Error::Dir(_)
            | Error::Extent(_)
            | Error::Indirect(_)
            | Error::Xattr(_) => EUCLEAN,
            // Opening failed before anything of the volume was touched: report the system's own
            // error.
            Error::Device(e) if matches!(e.op, Op::Open | Op::Lock) => e.errno(),
            Error::Thread(e) => of(e).unwrap_or(EAGAIN),
            Error::Journal(JournalError::Thread(e)) => of(e).unwrap_or(EAGAIN),
            Error::Journal(_)
            | Error::Device(_)
            | Error::Verity(_)
            | Error::Mmp(_)
            | Error::Lost { .. }
            | Error::CutShort { .. } => EIO,
        }
    }
}

fn xattr_name_errno(e: &lanefs_format::xattr::NameError) -> i32 {
    use lanefs_device::errno::*;
    use lanefs_format::xattr::NameError;
    match e {
        NameError::Length(_) => ERANGE,
        NameError::Invalid => EINVAL,
        NameError::Prefix => EOPNOTSUPP,
    }
}

impl From<MmpError> for Error {
    fn from(e: MmpError) -> Self {
        Error::Mmp(Box::new(e))
    }
}

impl From<Error> for io::Error {
    fn from(e: Error) -> Self {
        let kind = lanefs_device::errno::kind(e.errno());
        io::Error::new(kind, e)
    }
}
