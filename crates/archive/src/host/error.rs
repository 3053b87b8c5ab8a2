//! Errors of the host.

use crate::content::Content;
use crate::ids::OwnerError;
use rustix::io::Errno;
use std::io;

/// Why this machine refused something.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error(transparent)]
    System(#[from] io::Error),
    /// The owner is one that no file can have.
    #[error(transparent)]
    Owner(#[from] OwnerError),
    /// The name leads to another inode than the one that was made or found.
    #[error("another process has put something else in its place")]
    Replaced,
    /// A component of a path below the target is a symbolic link.
    #[error("a symbolic link is in the way, which is not followed")]
    LinkInTheWay,
    /// The named file is a symbolic link whose target does not exist.
    #[error("it is a symbolic link to what is not there")]
    DanglingLink,
    /// What is there is a volume that this process has open, which is never overwritten.
    #[error("it would replace a volume that is in use here")]
    OpenHere,
    /// What is there is not overwritten unless [`Overwrite::All`](super::Overwrite) says so.
    #[error(transparent)]
    Protected(#[from] Protected),
}

/// The kinds of file that are not overwritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Protected {
    /// A volume.
    #[error("it is an ext4 volume (a path inside of one is VOLUME:/path)")]
    Volume,
    /// A block device that is mounted, or that another process has opened exclusively.
    #[error("it is in use: mounted, or opened exclusively")]
    Busy,
    /// A file that another process has locked.
    #[error("it is in use: another process has locked it")]
    Locked,
    /// A block device with content.
    #[error("it holds {}", .0.name())]
    Holds(Content),
    /// A file in the place of an archive.
    #[error("it is there already and holds {}, no archive", .0.name())]
    NoArchive(Content),
}

/// The result of an operation on the host.
pub type Result<T = (), E = Error> = std::result::Result<T, E>;

impl Error {
    /// Returns the error number of the system, if the system refused.
    #[must_use]
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            Self::System(e) => e.raw_os_error(),
            _ => None,
        }
    }

    /// Returns whether the system refused with this error number.
    pub(crate) fn is(&self, errno: Errno) -> bool {
        self.raw_os_error() == Some(errno.raw_os_error())
    }
}

impl From<Errno> for Error {
    fn from(e: Errno) -> Self {
        Self::System(e.into())
    }
}
