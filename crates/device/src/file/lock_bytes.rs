//! The lock on a part of a file, beside the lock of the file.
//!
//! Openers of two partitions share the lock of the disk, and each locks the bytes of its own. A
//! reader of the whole disk shares the lock too, and so locks all bytes against those writers. A
//! writer of the whole disk has that lock alone.
//!
//! The locks belong to the open file, as `flock` does (`F_OFD_SETLK`). They lie beyond what a file
//! can hold, so that they do not meet those that other programs take on bytes: QEMU locks bytes 100
//! to 203 of an image.
#![allow(unsafe_code)]

#[cfg(not(all(target_env = "gnu", any(target_arch = "x86", target_arch = "arm"))))]
use libc::flock as Lock;
#[cfg(all(target_env = "gnu", any(target_arch = "x86", target_arch = "arm")))]
use libc::flock64 as Lock;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

/// The lock of the first byte. A file has less than 2^62 bytes on every file system of Linux, where
/// offsets end at 2^63.
pub(super) const BASE: u64 = 1 << 62;

/// Locks the bytes of `window`, or all.
///
/// # Errors
/// EAGAIN while another opener has some of them; the system's.
pub(super) fn lock(file: &File, read_only: bool, window: Option<&Range<u64>>) -> io::Result<()> {
    let kind = if read_only { libc::F_RDLCK } else { libc::F_WRLCK };
    match set(file, kind, window) {
        // A kernel without these locks: no writer of a part could have taken one either.
        Err(e) if window.is_none() && e.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        done => done,
    }
}

/// Gives all bytes free.
pub(super) fn unlock(file: &File) {
    let _ = set(file, libc::F_UNLCK, None);
}

fn set(file: &File, kind: libc::c_int, window: Option<&Range<u64>>) -> io::Result<()> {
    let too_far = |_| io::Error::from_raw_os_error(libc::EFBIG);
    // A length of 0 is all bytes from the first on.
    let (start, len) = window.map_or((0, 0), |range| (range.start, range.end - range.start));
    let start = BASE.saturating_add(start);
    // SAFETY: all zeroes are a valid value of this plain structure.
    let mut lock: Lock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = start.try_into().map_err(too_far)?;
    lock.l_len = len.try_into().map_err(too_far)?;
    loop {
        let done = set_once(file, &lock);
        let error = io::Error::last_os_error();
        match done {
            0 => return Ok(()),
            _ if error.kind() == io::ErrorKind::Interrupted => {}
            _ => return Err(error),
        }
    }
}

/// Sets the lock by fcntl(2).
#[cfg(not(all(target_env = "gnu", any(target_arch = "x86", target_arch = "arm"))))]
fn set_once(file: &File, lock: &Lock) -> libc::c_int {
    // SAFETY: the kernel only reads `lock`, which outlives the call.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const *lock) }
}

/// Sets the lock by the kernel's call, whose offsets have 64 bits. fcntl(2) has offsets of 32 bits
/// here, and BASE is beyond them.
#[cfg(all(target_env = "gnu", any(target_arch = "x86", target_arch = "arm")))]
fn set_once(file: &File, lock: &Lock) -> libc::c_long {
    // SAFETY: the kernel only reads `lock`, which outlives the call.
    unsafe { libc::syscall(libc::SYS_fcntl64, file.as_raw_fd(), libc::F_OFD_SETLK, &raw const *lock) }
}
