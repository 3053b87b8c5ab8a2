//! The lock of a file's content, in the three modes of `locking=`.
//!
//! - Shared: reads and direct overwrites. It keeps away only threads that take it exclusively.
//! - Exclusive over its bytes: a write that readers must see whole.
//! - Exclusive to the end of all bytes: an operation that changes i_size or moves blocks.

use crate::fs::Locking;
use lanefs_rangelock::{MutexRangeLock, Range, RangeLock};
use lanefs_stats::Histogram;
use lanefs_sync::RwLock;
use lanefs_sync::order::{Level, Note};

/// The lock of one file.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "the large one is the usual one")]
pub(crate) enum DataLock {
    Inode(RwLock<()>),
    Mutexed(MutexRangeLock),
    Range(RangeLock),
}

/// Locked bytes. The fields are never read, only dropped.
#[derive(Debug)]
pub(crate) struct LockedBytes<'a> {
    _guard: Guard<'a>,
    _note: Note,
}

/// Bytes locked for a caller of the library, which the check of the lock order does not know.
#[derive(Debug)]
pub(crate) struct Kept<'a> {
    _guard: Guard<'a>,
}

impl<'a> LockedBytes<'a> {
    /// Takes the lock out of the check of the lock order.
    pub(crate) fn kept(self) -> Kept<'a> {
        Kept { _guard: self._guard }
    }
}

#[derive(Debug)]
#[expect(dead_code, reason = "guards are held, not used")]
enum Guard<'a> {
    InodeRead(lanefs_sync::RwLockReadGuard<'a, ()>),
    InodeWrite(lanefs_sync::RwLockWriteGuard<'a, ()>),
    Mutexed(lanefs_rangelock::MutexRangeGuard<'a>),
    Read(lanefs_rangelock::ReadGuard<'a>),
    Write(lanefs_rangelock::WriteGuard<'a>),
}

impl DataLock {
    pub(crate) fn new(locking: Locking) -> Self {
        match locking {
            Locking::Inode => Self::Inode(RwLock::new(())),
            Locking::RangeMutex => Self::Mutexed(MutexRangeLock::new()),
            Locking::Range => Self::Range(RangeLock::new()),
        }
    }

    /// Locks `range` of the content of `ino`, shared. Counts the time of a wait in `waits`.
    pub(crate) fn read(&self, ino: u32, range: Range, waits: &Histogram) -> LockedBytes<'_> {
        self.try_read(ino, range).unwrap_or_else(|| waits.time(|| self.wait_to_read(ino, range)))
    }

    #[cold]
    fn wait_to_read(&self, ino: u32, range: Range) -> LockedBytes<'_> {
        let note = Note::new(Level::Range, ino.into());
        let guard = match self {
            Self::Inode(lock) => Guard::InodeRead(lock.read()),
            Self::Mutexed(lock) => Guard::Mutexed(lock.read(range)),
            Self::Range(lock) => Guard::Read(lock.read(range)),
        };
        LockedBytes { _guard: guard, _note: note }
    }

    /// Prepares for direct overwrites, which share the lock.
    pub(crate) fn expect_readers(&self) {
        if let Self::Range(lock) = self {
            lock.expect_readers();
        }
    }

    /// Locks `range` of the content of `ino`, exclusively. Counts the time of a wait in `waits`.
    pub(crate) fn write(&self, ino: u32, range: Range, waits: &Histogram) -> LockedBytes<'_> {
        self.try_write(ino, range).unwrap_or_else(|| waits.time(|| self.wait_to_write(ino, range)))
    }

    #[cold]
    fn wait_to_write(&self, ino: u32, range: Range) -> LockedBytes<'_> {
        let note = Note::new(Level::Range, ino.into());
        let guard = match self {
            Self::Inode(lock) => Guard::InodeWrite(lock.write()),
            Self::Mutexed(lock) => Guard::Mutexed(lock.write(range)),
            Self::Range(lock) => Guard::Write(lock.write(range)),
        };
        LockedBytes { _guard: guard, _note: note }
    }

    /// Locks as [`read`](Self::read) does; `None` if it would have to wait.
    pub(crate) fn try_read(&self, ino: u32, range: Range) -> Option<LockedBytes<'_>> {
        let note = Note::new(Level::Range, ino.into());
        let guard = match self {
            Self::Inode(lock) => Guard::InodeRead(lock.try_read()?),
            Self::Mutexed(lock) => Guard::Mutexed(lock.try_read(range)?),
            Self::Range(lock) => Guard::Read(lock.try_read(range)?),
        };
        Some(LockedBytes { _guard: guard, _note: note })
    }

    /// Locks as [`write`](Self::write) does; `None` if it would have to wait.
    pub(crate) fn try_write(&self, ino: u32, range: Range) -> Option<LockedBytes<'_>> {
        let note = Note::new(Level::Range, ino.into());
        let guard = match self {
            Self::Inode(lock) => Guard::InodeWrite(lock.try_write()?),
            Self::Mutexed(lock) => Guard::Mutexed(lock.try_write(range)?),
            Self::Range(lock) => Guard::Write(lock.try_write(range)?),
        };
        Some(LockedBytes { _guard: guard, _note: note })
    }
}
