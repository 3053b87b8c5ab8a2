//! Finds the user that owns a volume: the owner of the file, also of a file behind a loop device.
//!
//! The node of a loop device belongs to root, even if another user owns the file behind it and can
//! write to it. So this looks for the file, also below partitions and device-mapper devices. The
//! path may name another file by now, so the file must have the inode number that the loop device
//! reports.

use crate::UNKNOWN_OWNER;
use crate::loop_device::backing;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Devices on top of each other that are looked through.
const DEEPEST: u32 = 16;

/// Returns the owner of an open file, or of the file or device behind it: the first that is not
/// root.
///
/// # Errors
/// The system's.
pub(super) fn owner(file: &File) -> io::Result<u32> {
    let meta = file.metadata()?;
    match meta.file_type().is_block_device() {
        true => Ok(behind(file, DEEPEST).unwrap_or(UNKNOWN_OWNER)),
        false => Ok(meta.uid()),
    }
}

/// Returns the user ID of the owner of the file behind a device, `None` if it cannot be told.
fn behind(file: &File, deepest: u32) -> Option<u32> {
    let meta = file.metadata().ok()?;
    if !meta.file_type().is_block_device() || meta.uid() != 0 {
        return Some(meta.uid());
    }
    let deeper = deepest.checked_sub(1)?;
    let (major, minor) = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
    let below = backing(file);
    let Ok(sys) = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")) else {
        return below.is_none().then_some(0);
    };
    let disk = if sys.join("partition").exists() { sys.parent()?.to_owned() } else { sys };
    if disk.join("loop").exists() {
        let path = fs::read(disk.join("loop/backing_file")).ok()?;
        return file_behind(path.trim_ascii_end(), below?, deeper);
    }
    let slaves = fs::read_dir(disk.join("slaves")).into_iter().flatten().flatten();
    let owner = |name| behind(&File::open(Path::new("/dev").join(name)).ok()?, deeper);
    // The first that is not root, or not known.
    slaves.map(|slave| owner(slave.file_name())).find(|owner| *owner != Some(0)).unwrap_or(Some(0))
}

fn file_behind(path: &[u8], (device, inode): (u64, u64), deeper: u32) -> Option<u32> {
    use std::os::unix::ffi::OsStrExt;
    let path = PathBuf::from(std::ffi::OsStr::from_bytes(path));
    let meta = fs::metadata(&path).ok().filter(|meta| (meta.dev(), meta.ino()) == (device, inode))?;
    match meta.file_type().is_block_device() {
        true => behind(&File::open(path).ok()?, deeper),
        false => Some(meta.uid()),
    }
}
