//! The ioctl that asks a loop device for the file behind it.
#![allow(unsafe_code, reason = "rustix has no such call")]

use std::fs::File;
use std::os::fd::AsRawFd;

/// Returns the device and inode number of the file behind a loop device: the same by any path.
pub(crate) fn backing(device: &File) -> Option<(u64, u64)> {
    let info = status(device)?;
    // As the kernel encodes device numbers in 32 bits.
    let (major, minor) =
        ((info.device >> 8) & 0xfff, (info.device & 0xff) | ((info.device >> 12) & 0xf_ff00));
    Some((rustix::fs::makedev(major as u32, minor as u32), info.inode))
}

/// `struct loop_info64`.
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    others: [u64; 27],
}

const _: () = assert!(size_of::<LoopInfo>() == 232);

fn status(device: &File) -> Option<LoopInfo> {
    const LOOP_GET_STATUS64: libc::Ioctl = 0x4c05;
    let mut info = LoopInfo { device: 0, inode: 0, others: [0; 27] };
    // SAFETY: the kernel writes 232 bytes, the size of `LoopInfo`, of which every value is valid.
    let done = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, &raw mut info) };
    (done == 0).then_some(info)
}
