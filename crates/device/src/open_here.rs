//! The files that this process has open as devices: no output of the process may replace them.
//!
//! A lock does not tell: readers share it, and it does not say which process has it.

use std::fs::File;
#[cfg(unix)]
use std::fs::Metadata;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Device and inode number; of a block device, whatever its node, its own number.
#[cfg(unix)]
#[derive(Debug, Clone, PartialEq, Eq)]
struct Id(u64, u64);
#[cfg(not(unix))]
type Id = std::path::PathBuf;

static OPEN: Mutex<Vec<Id>> = Mutex::new(Vec::new());

fn open() -> MutexGuard<'static, Vec<Id>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns what `file` is known by: its own number, and that of the file behind a loop device.
#[cfg(unix)]
fn ids(file: &File) -> std::io::Result<Vec<Id>> {
    #[cfg_attr(not(target_os = "linux"), allow(unused_mut, reason = "only Linux has loop devices"))]
    let mut ids = vec![id(&file.metadata()?)];
    #[cfg(target_os = "linux")]
    ids.extend(crate::loop_device::backing(file).map(|(device, inode)| Id(device, inode)));
    Ok(ids)
}

#[cfg(unix)]
fn id(meta: &Metadata) -> Id {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    match meta.file_type().is_block_device() {
        true => Id(u64::MAX, meta.rdev()),
        false => Id(meta.dev(), meta.ino()),
    }
}

/// A file that is open as a device, from its open to its drop.
#[derive(Debug)]
pub(crate) struct OpenHere(Vec<Id>);

impl OpenHere {
    /// Notes `file`, which was opened by `path`.
    pub(crate) fn new(file: &File, path: &Path) -> std::io::Result<Self> {
        #[cfg(unix)]
        let (ids, _) = (ids(file)?, path);
        #[cfg(not(unix))]
        let (ids, _) = (vec![path.canonicalize()?], file);
        open().extend_from_slice(&ids);
        Ok(Self(ids))
    }
}

impl Drop for OpenHere {
    fn drop(&mut self) {
        let mut open = open();
        for own in &self.0 {
            if let Some(at) = open.iter().position(|id| id == own) {
                open.swap_remove(at);
            }
        }
    }
}

/// Returns whether this process has the file that `path` leads to open as a device, in any
/// [`FileDevice`](crate::FileDevice). A loop device and the file behind it are the same.
#[must_use]
pub fn is_open_here(path: impl AsRef<Path>) -> bool {
    #[cfg(unix)]
    let found = ids_at(path.as_ref());
    #[cfg(not(unix))]
    let found = path.as_ref().canonicalize().map(|id| vec![id]);
    found.is_ok_and(|ids| {
        let open = open();
        ids.iter().any(|id| open.contains(id))
    })
}

/// Returns whether this process has the inode `inode` of the file system on `device` (`st_ino` and
/// `st_dev` of stat(2)) open as a device, itself or behind a loop device.
///
/// Needs no system call, and so no `/proc`. A block device is not known by these numbers, which are
/// those of its node: [`is_open_here`] finds it.
#[cfg(unix)]
#[must_use]
pub fn is_inode_open_here(device: u64, inode: u64) -> bool {
    open().contains(&Id(device, inode))
}

/// Returns the ids, as [`ids`] does, of the file that `path` leads to. Opens none but a block
/// device, and leaves out the file behind one that the caller may not read.
#[cfg(unix)]
fn ids_at(path: &Path) -> std::io::Result<Vec<Id>> {
    use std::os::unix::fs::FileTypeExt;
    let meta = path.metadata()?;
    let opened = match meta.file_type().is_block_device() {
        true => File::open(path).ok(),
        false => None,
    };
    opened.map_or_else(|| Ok(vec![id(&meta)]), |device| ids(&device))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FileDevice;

    #[test]
    fn a_file_is_open_until_its_last_device_is_dropped() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let [path, other] = ["v.img", "other"].map(|name| dir.path().join(name));
        std::fs::write(&path, [0; 4096]).expect("write");
        std::fs::hard_link(&path, &other).expect("a link");
        assert!(!is_open_here(&path) && !is_open_here(dir.path().join("none")));
        let first = FileDevice::open_read_only(&path).expect("a device");
        let second = FileDevice::open_read_only(&path).expect("a device");
        assert!(is_open_here(&path) && is_open_here(&other));
        drop(first);
        assert!(is_open_here(&other));
        drop(second);
        assert!(!is_open_here(&path));
    }

    #[cfg(unix)]
    #[test]
    fn an_open_file_is_found_by_its_numbers() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().expect("a temporary directory");
        let [path, other] = ["v.img", "other"].map(|name| dir.path().join(name));
        let numbers = [&path, &other].map(|path| {
            std::fs::write(path, [0; 4096]).expect("write");
            let meta = path.metadata().expect("metadata");
            (meta.dev(), meta.ino())
        });
        let are_open = || numbers.map(|(device, inode)| is_inode_open_here(device, inode));
        let device = FileDevice::open_read_only(&path).expect("a device");
        assert_eq!(are_open(), [true, false]);
        drop(device);
        assert_eq!(are_open(), [false, false]);
    }
}
