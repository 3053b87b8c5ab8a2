//! A volume that is mounted, and the file that it is in: growth of both.

use rustix::fs::FallocateFlags;
use rustix::io::{Errno, retry_on_intr};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;

/// Asks the server of a mounted ext4 volume, by any open file or directory of it, to grow the
/// volume to `blocks` blocks: EXT4_IOC_RESIZE_FS, as resize2fs(8) does.
///
/// # Errors
/// The server's.
#[allow(unsafe_code)]
pub fn resize_mounted(root: impl AsFd, blocks: u64) -> io::Result<()> {
    const RESIZE_FS: rustix::ioctl::Opcode = rustix::ioctl::opcode::write::<u64>(b'f', 16);
    // SAFETY: EXT4_IOC_RESIZE_FS takes a pointer to a u64, which it only reads.
    let request = unsafe { rustix::ioctl::Setter::<RESIZE_FS, u64>::new(blocks) };
    // SAFETY: the request lives through the call, and the kernel keeps no pointer to it.
    Ok(unsafe { rustix::ioctl::ioctl(root, request) }?)
}

/// Makes a file at least `size` bytes long, and durably so, while other processes use it. Never
/// makes it shorter, whatever they do meanwhile: its last block is allocated, where the file system
/// can.
///
/// # Errors
/// The system's.
pub fn lengthen(file: &File, size: u64) -> io::Result<()> {
    let Some(last) = size.checked_sub(1) else { return Ok(()) };
    match retry_on_intr(|| rustix::fs::fallocate(file, FallocateFlags::empty(), last, 1)) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) if file.metadata()?.len() < size => file.set_len(size)?,
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
        done => done?,
    }
    file.sync_all()
}
