//! Checks what a file holds before it is overwritten.
//!
//! Hazard: `lanefs cp file disk.img` for `disk.img:/` would replace a volume.

use super::{Error, Object, Overwrite, Protected, Result};
use crate::content::{self, Content};
use lanefs::device::{is_inode_open_here, is_open_here};
use rustix::fs::{self, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;

/// Refuses a volume that this process has open, with any `overwrite`: it is read, or written
/// already. Refuses a regular file or block device that holds an ext4 volume, or that another
/// process has locked, and a block device that is in use or holds anything known.
pub(super) fn check(object: &Object, overwrite: Overwrite) -> Result {
    let stat = object.stat()?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    check_content(object, kind, overwrite)?;
    let is_open = match kind {
        FileType::BlockDevice => is_open_here(object.proc_path()),
        _ => is_inode_open_here(stat.st_dev, stat.st_ino),
    };
    if is_open { Err(Error::OpenHere) } else { Ok(()) }
}

fn check_content(object: &Object, kind: FileType, overwrite: Overwrite) -> Result {
    let is_block = kind == FileType::BlockDevice;
    if overwrite == Overwrite::All || !(is_block || kind == FileType::RegularFile) {
        return Ok(());
    }
    let exclusive = if is_block { OFlags::EXCL } else { OFlags::empty() };
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | exclusive;
    let file = match fs::open(object.proc_path(), flags, Mode::empty()) {
        Ok(fd) => File::from(fd),
        Err(Errno::BUSY) => return Err(Protected::Busy.into()),
        // What may be written and not read cannot be looked at.
        Err(Errno::ACCESS) => return Ok(()),
        Err(e) => return Err(e.into()),
    };
    match content::of(&file)? {
        Some(Content::Ext) => return Err(Protected::Volume.into()),
        Some(other) if is_block => return Err(Protected::Holds(other).into()),
        _ => {}
    }
    if is_locked(&file) {
        return Err(Protected::Locked.into());
    }
    Ok(())
}

/// Returns whether another open file has a lock of any kind: openers of volumes take `flock`,
/// virtual machines take locks of ranges, which only `/proc/locks` tells of.
fn is_locked(file: &File) -> bool {
    if fs::flock(file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
        return true;
    }
    // It was taken just now and nothing waits for the result.
    let _ = fs::flock(file, FlockOperation::Unlock);
    let (Ok(stat), Ok(locks)) = (fs::fstat(file), std::fs::read_to_string("/proc/locks")) else {
        return false;
    };
    let (major, minor) = (fs::major(stat.st_dev), fs::minor(stat.st_dev));
    let inode = format!("{major:02x}:{minor:02x}:{}", stat.st_ino);
    // As in "1: OFDLCK ADVISORY  WRITE -1 08:02:131 100 101"; see proc_locks(5).
    locks.lines().any(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        matches!(fields[..], [_, "POSIX" | "OFDLCK", _, _, _, at, ..] if at == inode)
    })
}
