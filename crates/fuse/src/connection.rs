//! The connection of a mount in the kernel: `/sys/fs/fuse/connections/NUMBER`.
//!
//! A number means another connection once the first is gone, and the kernel gives the lowest one
//! that is free. An open file of that folder does not: it belongs to the connection that it was
//! opened for, and is dead when that is gone.

use crate::table;
use rustix::fs::{CWD, Mode, OFlags, open, openat};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A connection, whatever has its number later.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Has a line while the connection is there, and is empty when it is gone.
    waiting: OwnedFd,
    abort: OwnedFd,
}

impl Connection {
    /// Finds the connection that has this number now. A caller that holds a file of its mount open
    /// knows that it is that of the mount.
    ///
    /// # Errors
    /// ENOENT if there is no such connection, or the caller is not root and the system has not
    /// mounted fusectl; EACCES if it is another user's.
    pub(crate) fn find(number: u32) -> rustix::io::Result<Self> {
        match Self::open(CWD, &format!("/sys/fs/fuse/connections/{number}")) {
            Err(Errno::NOENT) => {
                Self::open(fusectl().map_err(|_| Errno::NOENT)?.as_fd(), &number.to_string())
            }
            found => found,
        }
    }

    fn open(dir: BorrowedFd<'_>, path: &str) -> rustix::io::Result<Self> {
        let open = |name, how| openat(dir, format!("{path}/{name}"), how | OFlags::CLOEXEC, Mode::empty());
        Ok(Self { waiting: open("waiting", OFlags::PATH)?, abort: open("abort", OFlags::WRONLY)? })
    }

    /// Returns whether the connection has its number still: until its file system is mounted
    /// nowhere and no file of it is open. An aborted connection has it too.
    pub(crate) fn is_alive(&self) -> bool {
        // The same file, whatever its path leads to. An open file of it can be read only once.
        let waiting = open(table::name_of(&self.waiting), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        waiting.and_then(|file| rustix::io::read(file, &mut [0; 1])).is_ok_and(|len| len > 0)
    }

    /// Ends the connection. Programs that use its mount get ENOTCONN from then on, and its server
    /// ENODEV. Data that the kernel has cached and not written out is lost. Does nothing if the
    /// connection is gone.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn abort(&self) -> rustix::io::Result<()> {
        rustix::io::write(&self.abort, b"1").map(drop)
    }
}

/// Returns the file system of all connections, mounted nowhere: only root may make such a mount.
fn fusectl() -> rustix::io::Result<OwnedFd> {
    let context = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(context.as_fd())?;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}
