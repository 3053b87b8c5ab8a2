//! The connection of a mount in the kernel, by its number: `/sys/fs/fuse/connections/NUMBER`.

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Ends a connection. Programs that use its mount get ENOTCONN from then on, and its server ENODEV.
/// Data that the kernel has cached and not written out is lost.
///
/// # Errors
/// ENOENT if there is no such connection, or the caller is not root and the system has not mounted
/// fusectl.
pub(crate) fn abort(number: u32) -> rustix::io::Result<()> {
    let name = format!("{number}/abort");
    let write = |dir: BorrowedFd<'_>, name: &str| -> rustix::io::Result<()> {
        let file = openat(dir, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::io::write(&file, b"1").map(drop)
    };
    match write(CWD, &format!("/sys/fs/fuse/connections/{name}")) {
        Err(Errno::NOENT) => write(fusectl().map_err(|_| Errno::NOENT)?.as_fd(), &name),
        done => done,
    }
}

/// The file system of all connections, mounted nowhere: only root may make such a mount.
fn fusectl() -> rustix::io::Result<OwnedFd> {
    let context = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(context.as_fd())?;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}
