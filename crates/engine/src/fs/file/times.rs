//! The times and the i_version of a file whose content changes.
//!
//! A write stamps the file in memory. The inode on disk gets the stamp with its next change, with
//! fsync, with the commit timer, or when the file leaves memory. Stamps are as coarse as the
//! kernel's tick: most writes find the same stamp and write no shared memory. The first write after
//! a thread has read the attributes takes a fine stamp and a new i_version, so each observer sees
//! each change.
//!
//! Invariants:
//! - A change is stamped after it is visible. An observer that reads the new content with the old
//!   version sees a newer version later; one that reads the new version has the new content.
//! - Writes of a caller that keeps the times itself (the kernel, above a mount) change the version
//!   and no time ([`Stamp::Kept`]).

use crate::fs::IVersion;
use crate::store::Clock;
use lanefs_format::{Inode, Timestamp};
use lanefs_sync::atomic::{AtomicU64, Ordering, fence};

const LOOKED: u64 = 1;
/// In `pending`: a new version, but no new time. Less than every time.
const VERSION_ONLY: u64 = 1;
const NANOS: u64 = 1_000_000_000;

/// Whether a change of the content sets the times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stamp {
    /// Set to the time of the call.
    Now,
    /// Left alone: the caller keeps the times of the file.
    Kept,
}

/// Times and version that the inode does not have yet.
#[derive(Debug)]
pub(crate) struct Times {
    /// Time of the last change, in nanoseconds since 1970; 0 if the inode is up to date.
    pending: AtomicU64,
    /// i_version, and in bit 0 [`LOOKED`]: a thread has read the version. The bit is set when the
    /// inode is loaded, because earlier readers are not known, and is not stored on disk.
    version: AtomicU64,
}

impl Times {
    pub(crate) fn new(inode: &Inode) -> Self {
        Self { pending: AtomicU64::new(0), version: AtomicU64::new(inode.version << 1 | LOOKED) }
    }

    /// Stamps a change of the content. Returns `Some` if nothing was pending: the value that the
    /// caller passes to [`raise`](Self::raise) when it notes the file.
    pub(crate) fn touch(&self, clock: &Clock, mode: IVersion, stamp: Stamp) -> Option<u64> {
        let looked = self.version.load(Ordering::Acquire) & LOOKED != 0;
        if looked || mode == IVersion::Always {
            self.bump();
            // Pairs with the fence in `fold`: either this thread sees that nothing is pending, or
            // the inode gets the new version. Without both, a weakly ordered processor lets each
            // thread read what was before the other's change, and the version would be lost.
            fence(Ordering::SeqCst);
        }
        let now = match stamp {
            Stamp::Now if looked => clock.fine(),
            Stamp::Now => clock.coarse(),
            Stamp::Kept if looked || mode == IVersion::Always => VERSION_ONLY,
            Stamp::Kept => return None,
        };
        let later = |known: u64| (known != 0).then(|| known.max(now));
        let known = self.pending.load(Ordering::Relaxed);
        if known >= now || self.pending.fetch_update(Ordering::AcqRel, Ordering::Relaxed, later).is_ok() {
            return None;
        }
        Some(now)
    }

    /// Makes the time `now` pending.
    pub(crate) fn raise(&self, now: u64) {
        self.pending.fetch_max(now, Ordering::AcqRel);
    }

    /// Makes a new version, which no thread has read.
    fn bump(&self) {
        let next = |v: u64| Some((v | LOOKED).wrapping_add(1));
        let _ = self.version.fetch_update(Ordering::AcqRel, Ordering::Relaxed, next);
    }

    /// Makes a new version for a change of the inode itself, and returns it.
    pub(crate) fn changed(&self) -> u64 {
        self.bump();
        self.version.load(Ordering::Acquire) >> 1
    }

    /// Returns whether there are changes that the inode does not have yet.
    pub(crate) fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Acquire) != 0
    }

    /// Reads the version and marks it as read, so that the next change makes a new one. Both are
    /// one atomic operation: with two, another thread could make a version between them that is
    /// returned but not marked.
    pub(crate) fn look(&self) -> u64 {
        let seen = self.version.load(Ordering::Acquire);
        match seen & LOOKED {
            0 => self.version.fetch_or(LOOKED, Ordering::AcqRel) >> 1,
            _ => seen >> 1,
        }
    }

    /// Reads the version as [`look`](Self::look) does, and copies pending changes into `inode`, a
    /// copy.
    pub(crate) fn show(&self, inode: &mut Inode) {
        inode.version = self.look();
        set(inode, self.pending.load(Ordering::Acquire));
    }

    /// Moves pending changes into `inode`, which will be written. Returns them, for
    /// [`put_back`](Self::put_back).
    pub(crate) fn fold(&self, inode: &mut Inode) -> u64 {
        let pending = self.pending.swap(0, Ordering::AcqRel);
        // Pairs with the fence in `touch`.
        fence(Ordering::SeqCst);
        set(inode, pending);
        inode.version = self.version.load(Ordering::Acquire) >> 1;
        pending
    }

    /// Takes back what [`fold`](Self::fold) moved, because the inode was not written.
    pub(crate) fn put_back(&self, pending: u64) {
        self.pending.fetch_max(pending, Ordering::AcqRel);
    }
}

fn set(inode: &mut Inode, nanos: u64) {
    if nanos > VERSION_ONLY {
        let at = Timestamp { sec: (nanos / NANOS) as i64, nsec: (nanos % NANOS) as u32 };
        (inode.mtime, inode.ctime) = (at, at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inode() -> Inode {
        let device = lanefs_device::MemDevice::new(8 << 20);
        lanefs_mkfs::format(&device, &lanefs_mkfs::Options::default()).unwrap();
        Inode::new(12, 0o100_644, &crate::store::read_super(&device).unwrap().inode_context())
    }

    /// Returns a change; whether the file was to be noted.
    fn change(times: &Times, clock: &Clock, mode: IVersion) -> bool {
        times.touch(clock, mode, Stamp::Now).map(|now| times.raise(now)).is_some()
    }

    #[test]
    fn the_version_changes_once_for_each_look() {
        let clock = Clock::new(None, false, false);
        let times = Times::new(&inode());
        let shown = |times: &Times| {
            let mut copy = inode();
            times.fold(&mut copy);
            copy.version
        };
        assert!(change(&times, &clock, IVersion::Queried));
        assert!(!change(&times, &clock, IVersion::Queried));
        let first = shown(&times);
        for _ in 0..10 {
            change(&times, &clock, IVersion::Queried);
        }
        assert_eq!(shown(&times), first);
        assert_eq!(times.look(), first);
        assert_eq!(times.look(), first);
        change(&times, &clock, IVersion::Queried);
        assert_eq!(shown(&times), first + 1);
        for _ in 0..10 {
            change(&times, &clock, IVersion::Always);
        }
        assert_eq!(shown(&times), first + 11);
    }

    #[test]
    fn two_changes_with_a_look_between_have_two_times() {
        let clock = Clock::new(None, false, false);
        let times = Times::new(&inode());
        let mut before = inode();
        change(&times, &clock, IVersion::Queried);
        times.show(&mut before);
        for _ in 0..100 {
            change(&times, &clock, IVersion::Queried);
            let mut after = inode();
            times.show(&mut after);
            assert!(after.mtime > before.mtime);
            before = after;
        }
        times.fold(&mut before);
        assert!(!times.is_pending());
    }
}
