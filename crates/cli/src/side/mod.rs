//! One interface to the two places of files: a volume, and the host.
//!
//! [`Side`] is what cp, mv and the walks need, so that each is written once for every pair of
//! places. Paths are absolute inside a volume. Nothing here follows a link unless it says so.

mod host;
mod volume;

pub(crate) use host::{HostSide, is_file_open_here};
pub(crate) use volume::VolumeSide;

use crate::failure::Cause;
use crate::time::Time;
use lanefs::AtSymlink;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Names and values of extended attributes.
pub(crate) type Xattrs = Vec<(OsString, Vec<u8>)>;

/// Result of an operation on a side.
pub(crate) type Outcome<T = ()> = Result<T, Cause>;

/// Attributes of a file, as stat(2) has them.
#[derive(Debug, Clone)]
pub(crate) struct Meta {
    pub(crate) ino: u64,
    /// Type and permission bits.
    pub(crate) mode: u32,
    pub(crate) nlink: u64,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Major and minor number of a device file.
    pub(crate) rdev: (u32, u32),
    /// Bytes.
    pub(crate) size: u64,
    /// Of 512 bytes.
    pub(crate) blocks: u64,
    pub(crate) block_size: u64,
    pub(crate) atime: Time,
    pub(crate) mtime: Time,
    pub(crate) ctime: Time,
    pub(crate) btime: Option<Time>,
    /// i_version, which the host does not tell.
    pub(crate) version: Option<u64>,
    /// Tells file systems of one side apart.
    pub(crate) device: u64,
}

impl Meta {
    /// Returns which inode of its side it is: device and number.
    pub(crate) fn id(&self) -> (u64, u64) {
        (self.device, self.ino)
    }

    pub(crate) fn kind(&self) -> u32 {
        self.mode & 0o170000
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.kind() == 0o040000
    }

    pub(crate) fn is_file(&self) -> bool {
        self.kind() == 0o100000
    }

    pub(crate) fn is_symlink(&self) -> bool {
        self.kind() == 0o120000
    }

    pub(crate) fn is_device(&self) -> bool {
        matches!(self.kind(), 0o060000 | 0o020000)
    }
}

/// An open file to read.
pub(crate) trait Source {
    /// Reads at `offset`; 0 at the end.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Outcome<usize>;

    /// Returns the next data range at or after `offset`; `None` if only holes follow.
    fn next_data(&self, offset: u64) -> Outcome<Option<(u64, u64)>>;
}

/// An inode that is held open: its attributes are set, whatever its name is by then.
pub(crate) trait OpenInode {
    /// Returns its device and inode; on a volume the inode says all.
    fn id(&self) -> Outcome<(u64, u64)>;
    fn set_mode(&self, mode: u32) -> Outcome;
    fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> Outcome;
    fn set_times(&self, atime: Time, mtime: Time) -> Outcome;
    fn set_xattr(&self, name: &OsStr, value: &[u8]) -> Outcome;
}

/// An open file to write.
pub(crate) trait Sink: OpenInode {
    fn write_at(&self, data: &[u8], offset: u64) -> Outcome;
    fn set_len(&self, len: u64) -> Outcome;
    /// Returns whether bytes that are not written are zeros. A pipe puts no offset between two
    /// writes, and a device keeps what it held.
    fn keeps_holes(&self) -> Outcome<bool>;
}

/// Returns the choice of an option that follows links.
pub(crate) fn follow_if(yes: bool) -> AtSymlink {
    if yes { AtSymlink::Follow } else { AtSymlink::NoFollow }
}

/// A place of files: a volume or the host.
pub(crate) trait Side {
    /// Returns the prefix of paths of this side in messages: `x.img:`, or nothing.
    fn label(&self) -> &OsString;
    /// Returns the identity of the volume, if any: names can be moved and linked between sides of
    /// the same place.
    fn place(&self) -> Option<u64>;
    fn metadata(&self, path: &Path, at_end: AtSymlink) -> Outcome<Meta>;
    /// Returns whether this process has the file or block device at `path`, whose metadata is
    /// `meta`, open as a volume. A file of a volume never is.
    fn is_open_here(&self, _path: &Path, _meta: &Meta) -> bool {
        false
    }
    /// Returns the names but `.` and `..`, those of a volume in the order of the directory.
    fn read_dir(&self, path: &Path) -> Outcome<Vec<OsString>>;
    fn read_link(&self, path: &Path) -> Outcome<OsString>;
    /// Returns the path that `path` leads to, if it is a link.
    fn resolve(&self, path: &Path) -> Outcome<PathBuf>;
    fn open(&self, path: &Path) -> Outcome<Box<dyn Source + '_>>;
    /// Creates or truncates a file. A new file gets `mode`. With `keep`, an existing file stays the
    /// same inode. Without, it may be replaced, so that a file which another user of the host may
    /// have open is not reused.
    fn create(&self, path: &Path, mode: u32, keep: bool) -> Outcome<Box<dyn Sink + '_>>;
    fn mkdir(&self, path: &Path, mode: u32) -> Outcome;
    fn symlink(&self, target: &Path, path: &Path) -> Outcome<Box<dyn OpenInode + '_>>;
    /// Gives the inode `id` another name. Refuses any other that is at `old` by now.
    fn hard_link(&self, old: &Path, id: (u64, u64), new: &Path) -> Outcome;
    fn mknod(&self, path: &Path, mode: u32, rdev: (u32, u32)) -> Outcome<Box<dyn OpenInode + '_>>;
    /// Returns the inode at `path`, not followed. Refuses any other than `expected` (device,
    /// inode).
    fn node(&self, path: &Path, expected: Option<(u64, u64)>) -> Outcome<Box<dyn OpenInode + '_>>;
    fn rename(&self, old: &Path, new: &Path) -> Outcome;
    /// Lets two names change places.
    fn exchange(&self, one: &Path, other: &Path) -> Outcome;
    fn remove_file(&self, path: &Path) -> Outcome;
    fn remove_dir(&self, path: &Path) -> Outcome;
    /// Removes an entry that is to be overwritten. Refuses to remove a volume of the host.
    fn displace(&self, path: &Path) -> Outcome {
        self.remove_file(path)
    }
    fn list_xattrs(&self, path: &Path) -> Outcome<Vec<OsString>>;
    fn get_xattr(&self, path: &Path, name: &OsStr) -> Outcome<Vec<u8>>;
    /// Returns names and values of the attributes of the inode at `path`, whose metadata is `meta`:
    /// behind a link, if that was followed. Refuses any other inode that is there by now.
    fn xattrs_of(&self, path: &Path, meta: &Meta) -> Outcome<Xattrs>;
    fn remove_xattr(&self, path: &Path, name: &OsStr) -> Outcome;
    /// Makes everything durable.
    fn sync(&self) -> Outcome;
}

/// Returns a path as messages name it: `x.img:/a`.
pub(crate) fn shown(side: &dyn Side, path: &Path) -> Vec<u8> {
    use std::os::unix::ffi::OsStrExt;
    [side.label().as_bytes(), path.as_os_str().as_bytes()].concat()
}
