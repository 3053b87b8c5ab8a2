//! The FUSE_INIT handshake: the features that kernel and file system agree on.

use crate::request::{Init, MAX_CONTENT};
use crate::wire::{InitFlags, InitOut, MAJOR, MINOR};

/// Background requests in flight at once: readahead, writeback, asynchronous direct I/O. Beyond the
/// bound the kernel makes a thread wait that does writeback, and drops the dirty pages of a program
/// that is killed while it waits: so no bound.
const MAX_BACKGROUND: u16 = u16::MAX;

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

/// Returns the features that the kernel has and the server asks for.
pub(crate) fn agreed(init: &Init, features: WantedFeatures) -> InitFlags {
    let mut wanted = WANTED;
    wanted.set(InitFlags::POSIX_ACL, features.acl);
    // With `noopen` no open carries O_TRUNC: the kernel truncates by SETATTR.
    wanted.set(InitFlags::ATOMIC_O_TRUNC, !features.no_open);
    init.offered & wanted
}

/// Returns the answer to the kernel's FUSE_INIT, with the features `agreed`.
pub(crate) fn answer(init: &Init, agreed: InitFlags, time_gran: u32) -> InitOut {
    let flags = agreed.bits();
    InitOut {
        major: MAJOR,
        minor: MINOR,
        max_readahead: init.max_readahead,
        flags: flags as u32,
        flags2: (flags >> 32) as u32,
        max_background: MAX_BACKGROUND,
        congestion_threshold: MAX_BACKGROUND,
        max_write: MAX_CONTENT as u32,
        max_pages: max_pages(rustix::param::page_size()),
        time_gran,
        ..InitOut::default()
    }
}

/// Returns how many pages of that many bytes the content of a request has at most.
fn max_pages(page: usize) -> u16 {
    (MAX_CONTENT / page).max(1) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_as_many_pages_as_fit() {
        assert_eq!([4 << 10, 64 << 10, 4 << 20].map(max_pages), [256, 16, 1]);
    }

    #[test]
    fn what_the_kernel_does_not_offer_is_not_asked_for() {
        let features = |acl, no_open| WantedFeatures { acl, no_open, time_gran: 1 };
        let init = |offered| Init { major: MAJOR, minor: 31, max_readahead: 1 << 20, offered };
        let old = InitFlags::WRITEBACK_CACHE | InitFlags::POSIX_ACL | InitFlags::ATOMIC_O_TRUNC;
        let unknown = InitFlags::from_bits_retain(1 << 63);
        assert_eq!(agreed(&init(old | unknown), features(true, false)), old);
        assert_eq!(agreed(&init(old), features(false, true)), InitFlags::WRITEBACK_CACHE);
        let all = agreed(&init(InitFlags::all()), features(true, false));
        let answer = answer(&init(InitFlags::all()), all, 1);
        assert_eq!(u64::from(answer.flags2) << 32 | u64::from(answer.flags), all.bits());
        assert!(all.contains(InitFlags::DIRECT_IO_ALLOW_MMAP) && !all.contains(unknown));
    }
}
