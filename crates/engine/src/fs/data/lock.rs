//! The lock of a file's content, in the three ways of `locking=`.
//!
//! Shared to read, and for direct overwrites, which exclude nobody but those who move blocks.
//! Exclusive over the bytes for writes that the readers must see whole; to the end of all bytes
//! for what changes i_size or moves blocks.

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

/// Bytes held. Its parts are never looked at, only dropped.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    _guard: Guard<'a>,
    _note: Note,
}

/// Bytes held for the caller of the library, outside of the order of locks.
#[derive(Debug)]
pub(crate) struct Kept<'a> {
    _guard: Guard<'a>,
}

impl<'a> Held<'a> {
    /// The same bytes, held by who is not known to the order of locks.
    pub(super) fn kept(self) -> Kept<'a> {
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
    pub(super) fn new(locking: Locking) -> Self {
        match locking {
            Locking::Inode => Self::Inode(RwLock::new(())),
            Locking::RangeMutex => Self::Mutexed(MutexRangeLock::new()),
            Locking::Range => Self::Range(RangeLock::new()),
        }
    }

    /// `range` of the content of `ino`, shared. Having to wait goes into `waits`.
    pub(super) fn read(&self, ino: u32, range: Range, waits: &Histogram) -> Held<'_> {
        self.try_read(ino, range).unwrap_or_else(|| waits.time(|| self.wait_to_read(ino, range)))
    }

    #[cold]
    fn wait_to_read(&self, ino: u32, range: Range) -> Held<'_> {
        let note = Note::new(Level::Range, ino.into());
        let guard = match self {
            Self::Inode(lock) => Guard::InodeRead(lock.read()),
            Self::Mutexed(lock) => Guard::Mutexed(lock.read(range)),
            Self::Range(lock) => Guard::Read(lock.read(range)),
        };
        Held { _guard: guard, _note: note }
    }

    /// Direct overwrites are to come, which share.
    pub(super) fn expect_readers(&self) {
        if let Self::Range(lock) = self {
            lock.expect_readers();
        }
    }

    /// `range` of the content of `ino`, exclusive. Having to wait goes into `waits`.
    pub(super) fn write(&self, ino: u32, range: Range, waits: &Histogram) -> Held<'_> {
        self.try_write(ino, range).unwrap_or_else(|| waits.time(|| self.wait_to_write(ino, range)))
    }

    #[cold]
    fn wait_to_write(&self, ino: u32, range: Range) -> Held<'_> {
        let note = Note::new(Level::Range, ino.into());
        let guard = match self {
            Self::Inode(lock) => Guard::InodeWrite(lock.write()),
            Self::Mutexed(lock) => Guard::Mutexed(lock.write(range)),
            Self::Range(lock) => Guard::Write(lock.write(range)),
        };
        Held { _guard: guard, _note: note }
    }

    /// As [`read`](Self::read), if nobody has to be waited for.
    pub(super) fn try_read(&self, ino: u32, range: Range) -> Option<Held<'_>> {
        let note = Note::new(Level::Range, ino.into());
        let guard = match self {
            Self::Inode(lock) => Guard::InodeRead(lock.try_read()?),
            Self::Mutexed(lock) => Guard::Mutexed(lock.try_read(range)?),
            Self::Range(lock) => Guard::Read(lock.try_read(range)?),
        };
        Some(Held { _guard: guard, _note: note })
    }

    /// As [`write`](Self::write), if nobody has to be waited for.
    pub(super) fn try_write(&self, ino: u32, range: Range) -> Option<Held<'_>> {
        let note = Note::new(Level::Range, ino.into());
        let guard = match self {
            Self::Inode(lock) => Guard::InodeWrite(lock.try_write()?),
            Self::Mutexed(lock) => Guard::Mutexed(lock.try_write(range)?),
            Self::Range(lock) => Guard::Write(lock.try_write(range)?),
        };
        Some(Held { _guard: guard, _note: note })
    }
}
