//! One inode of the host, held by a descriptor.

use super::{Error, Result};
use crate::ids::check_owner;
use lanefs::Timestamp;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{self, AtFlags, FileType, Gid, Mode, Stat, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// Which inode of the host something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The device of its file system (`st_dev`).
    pub device: u64,
    /// Its number there (`st_ino`).
    pub inode: u64,
}

impl Identity {
    pub(crate) fn of(stat: &Stat) -> Self {
        Self { device: stat.st_dev, inode: stat.st_ino }
    }
}

/// An inode: open for reading or writing, or with `O_PATH` (devices, links, directories).
#[derive(Debug)]
pub struct Object {
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

    pub(super) fn stat(&self) -> Result<Stat> {
        Ok(fs::fstat(&self.fd)?)
    }

    /// Returns which inode it is.
    ///
    /// # Errors
    /// The errors of fstat(2).
    pub fn identity(&self) -> Result<Identity> {
        Ok(Identity::of(&self.stat()?))
    }

    /// Checks that it is the inode `identity`.
    ///
    /// # Errors
    /// [`Error::Replaced`]: it is another inode, which has taken the name. The errors of
    /// fstat(2).
    pub fn must_be(&self, identity: Identity) -> Result {
        if self.identity()? == identity {
            return Ok(());
        }
        Err(Error::Replaced)
    }

    /// Returns the magic link that leads to this inode whatever its name is.
    #[must_use]
    pub fn proc_path(&self) -> String {
        format!("/proc/self/fd/{}", self.fd.as_raw_fd())
    }

    /// Returns whether it is a regular file.
    ///
    /// # Errors
    /// The errors of fstat(2).
    pub fn is_regular(&self) -> Result<bool> {
        Ok(FileType::from_raw_mode(self.stat()?.st_mode) == FileType::RegularFile)
    }

    /// Returns whether this is not a regular file, or has no other owner and no other name: then no
    /// other user can have it open for writing.
    pub(super) fn is_ours_alone(&self) -> Result<bool> {
        let stat = self.stat()?;
        let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        Ok(!regular || stat.st_nlink == 1 && stat.st_uid == rustix::process::geteuid().as_raw())
    }

    /// Empties a regular file. Devices and pipes have nothing to empty.
    pub(super) fn empty(&self) -> Result {
        if self.is_regular()? {
            fs::ftruncate(&self.fd, 0)?;
        }
        Ok(())
    }

    /// Writes all of `data` at `offset`; a pipe or a terminal takes it behind what was written
    /// last.
    ///
    /// # Errors
    /// The errors of pwrite(2).
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result {
        let mut done = 0;
        while done < data.len() {
            let written = match rustix::io::pwrite(&self.fd, &data[done..], offset + done as u64) {
                Err(Errno::SPIPE) => rustix::io::write(&self.fd, &data[done..]),
                written => written,
            };
            match written {
                Err(Errno::INTR) => {}
                Ok(0) => return Err(Errno::IO.into()),
                written => done += written?,
            }
        }
        Ok(())
    }

    /// Sets the size.
    ///
    /// # Errors
    /// The errors of ftruncate(2).
    pub fn set_len(&self, len: u64) -> Result {
        Ok(fs::ftruncate(&self.fd, len)?)
    }

    /// Sets the permission bits, 12 of them.
    ///
    /// # Errors
    /// The errors of chmod(2).
    pub fn set_mode(&self, mode: u32) -> Result {
        let mode = Mode::from_raw_mode(mode & 0o7777);
        Ok(if self.is_path { fs::chmod(self.proc_path(), mode) } else { fs::fchmod(&self.fd, mode) }?)
    }

    /// Sets the owner; `None` leaves user or group as it is.
    ///
    /// # Errors
    /// [`Error::Owner`]: no file can be given to that user or group. The errors of
    /// chown(2).
    pub fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> Result {
        check_owner(uid, gid)?;
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        Ok(fs::chownat(&self.fd, c"", uid, gid, AtFlags::EMPTY_PATH)?)
    }

    /// Sets the times of the last access and of the last change.
    ///
    /// # Errors
    /// The errors of utimensat(2).
    pub fn set_times(&self, atime: Timestamp, mtime: Timestamp) -> Result {
        let spec = |t: Timestamp| Timespec { tv_sec: t.sec, tv_nsec: t.nsec.into() };
        let times = Timestamps { last_access: spec(atime), last_modification: spec(mtime) };
        if self.is_path {
            return Ok(fs::utimensat(fs::CWD, self.proc_path(), &times, AtFlags::empty())?);
        }
        Ok(fs::futimens(&self.fd, &times)?)
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// The errors of setxattr(2).
    pub fn set_xattr(&self, name: &OsStr, value: &[u8]) -> Result {
        let flags = XattrFlags::empty();
        if self.is_path {
            return Ok(fs::setxattr(self.proc_path(), name.as_bytes(), value, flags)?);
        }
        Ok(fs::fsetxattr(&self.fd, name.as_bytes(), value, flags)?)
    }

    /// Removes an attribute. A missing attribute is not an error.
    ///
    /// # Errors
    /// The errors of removexattr(2).
    pub fn remove_xattr(&self, name: &OsStr) -> Result {
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
