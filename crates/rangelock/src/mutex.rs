//! [`MutexRangeLock`]: the plain range lock, one mutex over one ordered map.
//!
//! It gives the guarantees of [`RangeLock`](crate::RangeLock) on order and waiting in two hundred
//! lines of safe code. It is the reference to compare with, and the fallback. Every operation of
//! every thread takes the mutex.
//!
//! Invariants:
//!
//! - A record enters the map at once, whether it must wait or not.
//! - A waiting record counts the records that block it, all of them older.
//! - A released record decrements the count of each younger record that it blocked, and wakes those
//!   that reach zero.
//!
//! Hazard: the map is in order of first points, and a record may reach far beyond its own. A search
//! starts as far to the left as the longest record since the map was last empty could reach from.
//! So a range to the end makes searches long until then.

use crate::range::{Claim, Mode, Range};
use crate::wait::{Request, Woken};
use lanefs_sync::{Arc, Mutex};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// A reader-writer lock over ranges of `u64`: an ordered map behind a mutex.
///
/// It gives the guarantees of [`RangeLock`](crate::RangeLock) on order and waiting, but every
/// operation of every thread takes the mutex. It is there to compare with, and as a fallback.
///
/// # Examples
/// ```
/// use lanefs_rangelock::{MutexRangeLock, Range};
///
/// let lock = MutexRangeLock::new();
/// let guard = lock.write(Range::new(0, 4096)?);
/// assert!(lock.try_read(Range::new(4095, 4097)?).is_none());
/// # drop(guard);
/// # Ok::<(), lanefs_rangelock::RangeError>(())
/// ```
#[derive(Default)]
pub struct MutexRangeLock {
    held: Mutex<HeldRecords>,
}

/// The order of records: by first point and then by arrival.
type Key = (u64, u64);

#[derive(Default)]
struct HeldRecords {
    records: BTreeMap<Key, HeldRecord>,
    /// Points from the first to the last of the longest record, one less than its length.
    longest: u64,
    /// Of the next to arrive.
    serial: u64,
}

struct HeldRecord {
    last: u64,
    mode: Mode,
    /// None: was let in at once.
    request: Option<Arc<Request>>,
}

impl HeldRecords {
    /// Returns the records that conflict with `claim`.
    fn conflicting(&self, claim: Claim) -> impl Iterator<Item = (Key, &HeldRecord)> {
        let from = (claim.range.first.saturating_sub(self.longest), 0);
        let others = self.records.range(from..=(claim.range.last, u64::MAX));
        others.map(|(&key, record)| (key, record)).filter(move |&(key, record)| {
            let range = Range { first: key.0, last: record.last };
            claim.conflicts(&Claim { range, mode: record.mode })
        })
    }

    fn insert(&mut self, claim: Claim, request: Option<Arc<Request>>) -> Key {
        let Range { first, last } = claim.range;
        self.longest = self.longest.max(last - first);
        let key = (first, self.serial);
        self.serial += 1;
        self.records.insert(key, HeldRecord { last, mode: claim.mode, request });
        key
    }

    fn remove(&mut self, claim: Claim, key: Key) -> Woken {
        let mut woken = Woken::default();
        self.records.remove(&key);
        for (_, record) in self.conflicting(claim).filter(|&((_, serial), _)| serial > key.1) {
            if let Some(request) = record.request.as_ref().filter(|r| r.recount(1, 0)) {
                woken.push(request);
            }
        }
        if self.records.is_empty() {
            self.longest = 0;
        }
        woken
    }
}

impl MutexRangeLock {
    /// Returns a lock without holders. Allocates nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Locks `range` for reading, and blocks until that is possible.
    ///
    /// Earlier writers that hold or wait for a part of it go first.
    pub fn read(&self, range: Range) -> MutexRangeGuard<'_> {
        self.acquire(Claim { range, mode: Mode::Read })
    }

    /// Locks `range` for writing, and blocks until that is possible.
    ///
    /// All earlier requests that hold or wait for a part of it go first.
    pub fn write(&self, range: Range) -> MutexRangeGuard<'_> {
        self.acquire(Claim { range, mode: Mode::Write })
    }

    /// Locks `range` for reading without blocking.
    ///
    /// Returns `None` if a writer holds or waits for a part of it.
    pub fn try_read(&self, range: Range) -> Option<MutexRangeGuard<'_>> {
        self.try_acquire(Claim { range, mode: Mode::Read })
    }

    /// Locks `range` for writing without blocking.
    ///
    /// Returns `None` if another request holds or waits for a part of it.
    pub fn try_write(&self, range: Range) -> Option<MutexRangeGuard<'_>> {
        self.try_acquire(Claim { range, mode: Mode::Write })
    }

    /// Locks `range` for reading as [`read`](Self::read) does, but blocks for `patience` at most.
    ///
    /// Returns `None` if that was not long enough.
    pub fn read_timeout(&self, range: Range, patience: Duration) -> Option<MutexRangeGuard<'_>> {
        self.acquire_timeout(Claim { range, mode: Mode::Read }, Some(patience))
    }

    /// Locks `range` for writing as [`write`](Self::write) does, but blocks for `patience` at most.
    ///
    /// Returns `None` if that was not long enough.
    pub fn write_timeout(&self, range: Range, patience: Duration) -> Option<MutexRangeGuard<'_>> {
        self.acquire_timeout(Claim { range, mode: Mode::Write }, Some(patience))
    }

    fn acquire(&self, claim: Claim) -> MutexRangeGuard<'_> {
        match self.acquire_timeout(claim, None) {
            Some(guard) => guard,
            None => unreachable!("there is no end to its patience"),
        }
    }

    fn acquire_timeout(&self, claim: Claim, patience: Option<Duration>) -> Option<MutexRangeGuard<'_>> {
        let (key, request) = {
            let mut held = self.held.lock();
            let blockers = held.conflicting(claim).count();
            let request = (blockers > 0).then(|| Request::new(blockers));
            (held.insert(claim, request.clone()), request)
        };
        // Dropped when the request times out; it then removes the record, so that later requests
        // can proceed.
        let guard = MutexRangeGuard { lock: self, claim, key };
        request.is_none_or(|request| request.wait(patience)).then_some(guard)
    }

    fn try_acquire(&self, claim: Claim) -> Option<MutexRangeGuard<'_>> {
        let mut held = self.held.lock();
        if held.conflicting(claim).next().is_some() {
            return None;
        }
        let key = held.insert(claim, None);
        Some(MutexRangeGuard { lock: self, claim, key })
    }
}

impl fmt::Debug for MutexRangeLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held = self.held.lock();
        f.debug_list()
            .entries(held.records.iter().map(|(key, record)| crate::Record {
                range: Range { first: key.0, last: record.last },
                mode: record.mode,
                blockers: record.request.as_ref().map_or(0, |r| r.blockers()),
            }))
            .finish()
    }
}

/// A range of a [`MutexRangeLock`] that is locked, for reading or for writing.
///
/// It is released when the guard is dropped.
#[must_use = "released at once unless kept"]
pub struct MutexRangeGuard<'a> {
    lock: &'a MutexRangeLock,
    claim: Claim,
    key: Key,
}

impl MutexRangeGuard<'_> {
    /// Returns the held range.
    pub fn range(&self) -> Range {
        self.claim.range
    }
}

impl Drop for MutexRangeGuard<'_> {
    fn drop(&mut self) {
        let woken = self.lock.held.lock().remove(self.claim, self.key);
        woken.wake();
    }
}

impl fmt::Debug for MutexRangeGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MutexRangeGuard").field(&self.range()).finish()
    }
}
