//! One inode of the host, held by a descriptor.

use crate::failure::Cause;
use crate::owner;
use crate::side::{Node, Outcome};
use crate::time::Time;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{self, AtFlags, FileType, Gid, Mode, Stat, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// Which inode of the host something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

impl From<&Stat> for Identity {
    fn from(stat: &Stat) -> Self {
        Self { device: stat.st_dev, inode: stat.st_ino }
    }
}

/// An inode: open for reading or writing, or with `O_PATH` (devices, links, directories).
#[derive(Debug)]
pub(crate) struct Object {
    fd: OwnedFd,
    /// An `O_PATH` descriptor takes some calls only through its name in `/proc`.
    is_path: bool,
}

impl Object {
    pub(super) fn open(fd: OwnedFd) -> Self {
        Self { fd, is_path: false }
    }

    pub(super) fn path(fd: OwnedFd) -> Self {
        Self { fd, is_path: true }
    }

    pub(super) fn stat(&self) -> Outcome<Stat> {
        Ok(fs::fstat(&self.fd)?)
    }

    /// Returns which inode it is.
    pub(crate) fn identity(&self) -> Outcome<Identity> {
        Ok((&self.stat()?).into())
    }

    /// Refuses another inode than `identity`: something else has taken its name.
    pub(crate) fn must_be(&self, identity: Identity) -> Outcome {
        if self.identity()? == identity {
            return Ok(());
        }
        Err(Cause::text("another process has put something else in its place"))
    }

    /// Returns the magic link that leads to this inode whatever its name is.
    pub(crate) fn proc_path(&self) -> String {
        format!("/proc/self/fd/{}", self.fd.as_raw_fd())
    }

    /// Returns whether this is not a regular file, or has no other owner and no other name: then no
    /// other user can have it open for writing.
    pub(super) fn is_ours_alone(&self) -> Outcome<bool> {
        let stat = self.stat()?;
        let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        Ok(!regular || stat.st_nlink == 1 && stat.st_uid == rustix::process::geteuid().as_raw())
    }

    /// Empties a regular file. Devices and pipes have nothing to empty.
    pub(super) fn empty(&self) -> Outcome {
        if FileType::from_raw_mode(self.stat()?.st_mode) == FileType::RegularFile {
            fs::ftruncate(&self.fd, 0)?;
        }
        Ok(())
    }

    /// Removes an attribute. A missing attribute is not an error.
    pub(crate) fn remove_xattr(&self, name: &OsStr) -> Outcome {
        match fs::removexattr(self.proc_path(), name.as_bytes()) {
            Err(Errno::NODATA | Errno::NOTSUP) => Ok(()),
            removed => Ok(removed?),
        }
    }
}

impl From<Object> for OwnedFd {
    fn from(object: Object) -> Self {
        object.fd
    }
}

/// The open file, for a stream.
impl From<Object> for std::fs::File {
    fn from(object: Object) -> Self {
        object.fd.into()
    }
}

impl AsFd for Object {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Node for Object {
    fn set_mode(&self, mode: u32) -> Outcome {
        let mode = Mode::from_raw_mode(mode & 0o7777);
        Ok(if self.is_path { fs::chmod(self.proc_path(), mode) } else { fs::fchmod(&self.fd, mode) }?)
    }

    fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> Outcome {
        owner::check(uid, gid).map_err(Cause::text)?;
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        Ok(fs::chownat(&self.fd, c"", uid, gid, AtFlags::EMPTY_PATH)?)
    }

    fn set_times(&self, atime: Time, mtime: Time) -> Outcome {
        let spec = |t: Time| Timespec { tv_sec: t.sec, tv_nsec: t.nsec.into() };
        let times = Timestamps { last_access: spec(atime), last_modification: spec(mtime) };
        if self.is_path {
            return Ok(fs::utimensat(fs::CWD, self.proc_path(), &times, AtFlags::empty())?);
        }
        Ok(fs::futimens(&self.fd, &times)?)
    }

    fn set_xattr(&self, name: &OsStr, value: &[u8]) -> Outcome {
        let flags = XattrFlags::empty();
        if self.is_path {
            return Ok(fs::setxattr(self.proc_path(), name.as_bytes(), value, flags)?);
        }
        Ok(fs::fsetxattr(&self.fd, name.as_bytes(), value, flags)?)
    }
}
