//! The table of mounts of a mount namespace: `/proc/PID/mountinfo`.
//!
//! A mount is identified by its mount id, and the file system behind it by its device number. A
//! path is neither: another mount may cover it, or have taken its place.

use rustix::fs::{Mode, OFlags, open, openat};
use rustix::mount::MountFlags;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The type of a mount in `/proc/mounts`.
const FS_TYPE: &str = "fuse.lanefs";

/// MS_LAZYTIME of mount(2).
pub(crate) const LAZYTIME: MountFlags = MountFlags::from_bits_retain(1 << 25);

/// The device number of a mounted file system, `st_dev` of its files: the identity of all its
/// mounts. Its minor number is that of its FUSE connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MountDevice {
    /// 0 for a file system without a block device.
    pub major: u32,
    /// The number of the connection.
    pub minor: u32,
}

/// One mount.
#[derive(Debug, Clone)]
pub(crate) struct MountEntry {
    pub(crate) id: u64,
    pub(crate) device: MountDevice,
    /// The directory that it is mounted at.
    pub(crate) at: PathBuf,
    /// Flags of the mount and of its file system, as for mount(2).
    pub(crate) flags: MountFlags,
    kind: Vec<u8>,
    pub(crate) source: PathBuf,
}

/// Names of flags in the table, and what they are for mount(2).
const FLAGS: [(&[u8], MountFlags); 8] = [
    (b"ro", MountFlags::RDONLY),
    (b"nosuid", MountFlags::NOSUID),
    (b"nodev", MountFlags::NODEV),
    (b"noexec", MountFlags::NOEXEC),
    (b"noatime", MountFlags::NOATIME),
    (b"nodiratime", MountFlags::NODIRATIME),
    (b"relatime", MountFlags::RELATIME),
    (b"nosymfollow", MountFlags::NOSYMFOLLOW),
];

/// The same for flags of the file system, which a change of the mount's flags sets too.
const SUPER_FLAGS: [(&[u8], MountFlags); 4] = [
    (b"ro", MountFlags::RDONLY),
    (b"sync", MountFlags::SYNCHRONOUS),
    (b"dirsync", MountFlags::DIRSYNC),
    (b"lazytime", LAZYTIME),
];

impl MountEntry {
    fn parse(line: &[u8]) -> Option<Self> {
        let words: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
        let dash = words.iter().position(|word| *word == b"-")?;
        let number = |word: &[u8]| std::str::from_utf8(word).ok()?.parse().ok();
        let mut device = words.get(2)?.split(|b| *b == b':');
        let mut half = || u32::try_from(number(device.next()?)?).ok();
        let has = |at: usize, name: &[u8]| {
            words.get(at).is_some_and(|all| all.split(|b| *b == b',').any(|word| word == name))
        };
        let mut flags = MountFlags::empty();
        let of_mount = FLAGS.iter().filter(|(name, _)| has(5, name));
        let of_super = SUPER_FLAGS.iter().filter(|(name, _)| has(dash + 3, name));
        flags.extend(of_mount.chain(of_super).map(|(_, flag)| *flag));
        // This flag alone has no name in the table.
        let atime = MountFlags::NOATIME | MountFlags::RELATIME;
        flags.set(MountFlags::STRICTATIME, !flags.intersects(atime));
        Some(Self {
            id: number(words.first()?)?,
            device: MountDevice { major: half()?, minor: half()? },
            at: unescape(words.get(4)?),
            flags,
            kind: words.get(dash + 1)?.to_vec(),
            source: unescape(words.get(dash + 2)?),
        })
    }

    /// Returns whether it has the type of the mounts of lanefs.
    pub(crate) fn is_of_lanefs(&self) -> bool {
        self.kind == FS_TYPE.as_bytes()
    }

    /// Returns its type, as `/proc/mounts` has it.
    pub(crate) fn kind(&self) -> String {
        String::from_utf8_lossy(&self.kind).into_owned()
    }

    /// Returns the root of this very mount. `None` where its path leads elsewhere: another mount
    /// covers it.
    pub(crate) fn root(&self) -> Option<OwnedFd> {
        let root = point(&self.at).ok()?;
        (mount_id(&root) == Some(self.id)).then_some(root)
    }
}

/// Returns the mounts that the calling thread sees, in the order in which they were made.
pub(crate) fn own() -> Vec<MountEntry> {
    of("thread-self")
}

/// Returns the mounts that a process sees; none if the caller may not know them.
pub(crate) fn of(process: &str) -> Vec<MountEntry> {
    let table = std::fs::read(format!("/proc/{process}/mountinfo")).unwrap_or_default();
    parse(&table).collect()
}

/// Returns the mounts of a table.
pub(crate) fn parse(table: &[u8]) -> impl Iterator<Item = MountEntry> {
    table.split(|b| *b == b'\n').filter_map(MountEntry::parse)
}

/// Returns the mount whose root `dir` leads to, and that root.
pub(crate) fn at(dir: &Path) -> Option<(MountEntry, OwnedFd)> {
    let root = point(dir).ok()?;
    let (id, path) = (mount_id(&root)?, path_of(&root)?);
    own().into_iter().find(|entry| entry.id == id && entry.at == path).map(|entry| (entry, root))
}

/// Opens a directory as a point of the tree (O_PATH). Asks nothing of its file system, so a server
/// that hangs cannot hang the caller.
pub(crate) fn point(dir: &Path) -> rustix::io::Result<OwnedFd> {
    open(dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Returns the same directory, open for reading.
pub(crate) fn opened(point: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    openat(point, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Returns the path of an open directory.
pub(crate) fn path_of(dir: &OwnedFd) -> Option<PathBuf> {
    std::fs::read_link(name_of(dir)).ok()
}

/// Returns a name by which a system call finds an open file itself, however its path has changed.
pub(crate) fn name_of(file: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Returns the id of the mount that an open file is in.
pub(crate) fn mount_id(file: &OwnedFd) -> Option<u64> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).ok()?;
    info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().parse().ok()
}

/// Returns the id of the mount that an open file is in, which no other mount gets until the system
/// ends. `None` before Linux 6.8.
pub(crate) fn unique_id(file: &OwnedFd) -> Option<u64> {
    use rustix::fs::{AtFlags, StatxFlags, statx};
    /// STATX_MNT_ID_UNIQUE of linux/stat.h.
    const UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);
    let known = statx(file, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, UNIQUE).ok()?;
    (known.stx_mask & UNIQUE.bits() != 0).then_some(known.stx_mnt_id)
}

/// Returns the device number of the file system of an open file. Asks nothing of that file system.
pub(crate) fn device_of(file: &OwnedFd) -> rustix::io::Result<MountDevice> {
    use rustix::fs::{AtFlags, StatxFlags, statx};
    let known = statx(file, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::empty())?;
    Ok(MountDevice { major: known.stx_dev_major, minor: known.stx_dev_minor })
}

/// Returns a path without the octal escapes of the table.
fn unescape(word: &[u8]) -> PathBuf {
    let mut out = Vec::new();
    let mut rest = word;
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|d| std::str::from_utf8(d).ok());
        match digits.and_then(|d| u8::from_str_radix(d, 8).ok()).filter(|_| byte == b'\\') {
            Some(value) => {
                out.push(value);
                rest = &after[3..];
            }
            None => {
                out.push(byte);
                rest = after;
            }
        }
    }
    OsString::from_vec(out).into()
}

/// Returns whether the source of a mount is that volume.
pub(crate) fn is_source(entry: &MountEntry, source: &OsStr) -> bool {
    entry.source.as_os_str().as_bytes() == source.as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_table() {
        let line = br"36 35 0:45 / /mnt/a\040b rw,nosuid,noexec,relatime shared:1 - fuse.lanefs /v\134w rw,user_id=0";
        let entry = MountEntry::parse(line).unwrap();
        assert_eq!((entry.id, entry.device), (36, MountDevice { major: 0, minor: 45 }));
        assert_eq!((entry.at.as_path(), entry.source.as_path()), (Path::new("/mnt/a b"), Path::new(r"/v\w")));
        assert_eq!(entry.flags, MountFlags::NOSUID | MountFlags::NOEXEC | MountFlags::RELATIME);
        assert!(entry.is_of_lanefs());
        for short in [&b""[..], b"36", b"36 35 0:45 / /mnt rw", b"36 35 045 / /mnt rw - fuse.lanefs v"] {
            assert!(MountEntry::parse(short).is_none());
        }
    }

    #[test]
    fn escapes_of_the_table_of_mounts() {
        assert_eq!(unescape(br"/mnt/a\040b\134c"), Path::new(r"/mnt/a b\c"));
        assert_eq!(unescape(br"/mnt/a\04"), Path::new(r"/mnt/a\04"));
    }

    #[test]
    fn a_directory_inside_of_a_mount_is_none() {
        let (entry, root) = at(Path::new("/proc")).unwrap();
        assert_eq!((entry.at.as_path(), device_of(&root).unwrap()), (Path::new("/proc"), entry.device));
        assert!(at(Path::new("/proc/sys")).is_none() && at(Path::new("/proc/version")).is_none());
    }
}
