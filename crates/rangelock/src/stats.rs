//! Counters of a lock, and a list of its holders and waiters.

use crate::lock::RangeLock;
use crate::range::{Claim, Mode, Range};
use lanefs_sync::atomic::Ordering;
use std::fmt;

/// Counters of a [`RangeLock`] since it was made or trimmed.
///
/// Each is exact at some moment of the call to [`RangeLock::stats`], not all at the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Requests that were granted or are queued.
    pub acquired: u64,
    /// Requests of `acquired` that published their range, without a write to a shared cache line.
    pub published: u64,
    /// Requests that met a conflict and waited.
    pub waited: u64,
    /// Requests that timed out.
    pub timed_out: u64,
    /// Leaf locks that were not free at once, and descents that started over.
    pub retried: u64,
    /// Whether the inline leaf was left for a tree: 0 or 1.
    pub promoted: u64,
    /// Leaves split.
    pub splits: u64,
    /// Leaves merged.
    pub merges: u64,
    /// Times that a writer closed a lock that was open to readers.
    pub closed: u64,
    /// Leaves in use, the inline one not counted.
    pub leaves: usize,
    /// Heap memory, in bytes, but for the queues of waiters.
    pub memory: usize,
}

/// A range that a thread holds or waits for, as [`RangeLock::records`] lists it.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// The range that is held or waited for.
    pub range: Range,
    /// Whether it is for reading or for writing.
    pub mode: Mode,
    /// The number of holders and waiters in its way; 0 for a holder.
    pub blockers: usize,
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?}", self.mode, self.range)?;
        if self.blockers > 0 { write!(f, " waits for {}", self.blockers) } else { Ok(()) }
    }
}

impl RangeLock {
    /// Returns the counters of the lock. Locks each leaf once.
    pub fn stats(&self) -> Stats {
        let mut stats = Stats {
            waited: self.waited.load(Ordering::Relaxed),
            timed_out: self.timed_out.load(Ordering::Relaxed).into(),
            ..Stats::default()
        };
        {
            let inline = self.inline.lock();
            (stats.acquired, stats.retried) = (inline.acquired, inline.retried);
        }
        if let Some(tree) = self.tree() {
            let [acquired, retried] = tree.sum(|leaf| [leaf.acquired, leaf.retried]);
            let shape = tree.shape();
            stats.acquired += acquired;
            stats.retried += retried;
            stats.promoted = 1;
            (stats.splits, stats.merges) = (shape.splits, shape.merges);
            stats.leaves = shape.leaves - shape.spare;
            stats.memory = shape.memory;
        }
        if let Some(shared) = self.shared() {
            stats.published = shared.lanes().iter().map(|lane| lane.count()).sum();
            stats.acquired += stats.published;
            stats.closed = shared.closed.load(Ordering::Relaxed);
            stats.memory += size_of_val(shared.lanes()) + size_of_val(shared);
        }
        stats
    }

    /// Returns all holders and waiters at one moment, by first point and then by arrival.
    ///
    /// Published readers come first, and may have arrived or left meanwhile. For debugging: it
    /// locks all leaves at once.
    ///
    /// # Examples
    /// ```
    /// # use lanefs_rangelock::{Mode, Range, RangeLock};
    /// let lock = RangeLock::new();
    /// let guard = lock.write(Range::new(0, 8)?);
    /// let records = lock.records();
    /// assert_eq!((records[0].range, records[0].mode), (guard.range(), Mode::Write));
    /// assert_eq!(records[0].blockers, 0);
    /// # Ok::<(), lanefs_rangelock::RangeError>(())
    /// ```
    pub fn records(&self) -> Vec<Record> {
        let mut records = Vec::new();
        for lane in self.shared().into_iter().flat_map(|shared| shared.lanes()) {
            records.extend(lane.published().map(|(range, _)| Record {
                range,
                mode: Mode::Read,
                blockers: 0,
            }));
        }
        let leaves = self.lock_under(&[Claim { range: Range::ALL, mode: Mode::Read }]);
        for leaf in &leaves {
            // A record over several leaves is listed by the first.
            let here = |c: &Claim| leaf.has(c.range.first);
            let mut holders: Vec<Claim> = leaf.holders().map(|(_, c)| c).filter(here).collect();
            holders.sort_unstable_by_key(|c| c.range);
            records.extend(holders.iter().map(|c| Record { range: c.range, mode: c.mode, blockers: 0 }));
            records.extend(leaf.queue().iter().filter(|e| here(&e.claim)).map(|e| Record {
                range: e.claim.range,
                mode: e.claim.mode,
                blockers: e.request.as_ref().map_or(0, |r| r.blockers()),
            }));
        }
        records
    }
}

impl fmt::Debug for RangeLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RangeLock").field("records", &self.records()).field("stats", &self.stats()).finish()
    }
}
