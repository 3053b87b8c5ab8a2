//! The FUSE_INIT handshake: the features that kernel and file system agree on.

use crate::request::MAX_CONTENT;
use crate::wire::{InitFlags, InitIn, InitOut, MAJOR, MINOR};

/// Background requests in flight at once: readahead, writeback, asynchronous direct I/O. Beyond the
/// bound the kernel makes a thread wait that does writeback, and drops the dirty pages of a program
/// that is killed while it waits: so no bound.
const MAX_BACKGROUND: u16 = u16::MAX;
const PAGE: usize = 4096;

/// The features that the server asks for, where the kernel has them.
const WANTED: InitFlags = InitFlags::ASYNC_READ
    .union(InitFlags::ATOMIC_O_TRUNC)
    .union(InitFlags::EXPORT_SUPPORT)
    .union(InitFlags::BIG_WRITES)
    // The umask counts where there is no default ACL: only the file system knows.
    .union(InitFlags::DONT_MASK)
    .union(InitFlags::HAS_IOCTL_DIR)
    .union(InitFlags::DO_READDIRPLUS)
    .union(InitFlags::READDIRPLUS_AUTO)
    .union(InitFlags::ASYNC_DIO)
    .union(InitFlags::WRITEBACK_CACHE)
    .union(InitFlags::PARALLEL_DIROPS)
    .union(InitFlags::POSIX_ACL)
    .union(InitFlags::MAX_PAGES)
    .union(InitFlags::CACHE_SYMLINKS)
    .union(InitFlags::NO_OPENDIR_SUPPORT)
    .union(InitFlags::HANDLE_KILLPRIV_V2)
    .union(InitFlags::SETXATTR_EXT)
    .union(InitFlags::INIT_EXT)
    .union(InitFlags::DIRECT_IO_ALLOW_MMAP);

/// What the options of a mount and its volume ask of the kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WantedFeatures {
    /// It checks permissions by ACLs, not by modes only.
    pub(crate) acl: bool,
    /// It opens files without a request.
    pub(crate) no_open: bool,
    /// Times that it keeps are whole multiples of so many nanoseconds.
    pub(crate) time_gran: u32,
}

/// Returns the answer to the kernel's FUSE_INIT.
pub(crate) fn answer(init: &InitIn, features: WantedFeatures) -> InitOut {
    let WantedFeatures { acl, no_open, time_gran } = features;
    let offered = InitFlags::from_bits_retain(u64::from(init.flags2) << 32 | u64::from(init.flags));
    let mut wanted = WANTED;
    wanted.set(InitFlags::POSIX_ACL, acl);
    // With `noopen` no open carries O_TRUNC: the kernel truncates by SETATTR.
    wanted.set(InitFlags::ATOMIC_O_TRUNC, !no_open);
    let flags = (offered & wanted).bits();
    InitOut {
        major: MAJOR,
        minor: MINOR,
        max_readahead: init.max_readahead,
        flags: flags as u32,
        flags2: (flags >> 32) as u32,
        max_background: MAX_BACKGROUND,
        congestion_threshold: MAX_BACKGROUND,
        max_write: MAX_CONTENT as u32,
        max_pages: (MAX_CONTENT / PAGE) as u16,
        time_gran,
        ..InitOut::default()
    }
}
