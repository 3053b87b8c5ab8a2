//! [`RangeLock`]: the public interface and the fast path.
//!
//! The fast path finds the one leaf that covers the whole range, locks it, finds no conflict, takes
//! a slot and unlocks. Any other request takes the slow path (`admit.rs`), which handles every case
//! and starts over.

use crate::guard::{HeldRange, ManyGuard, ReadGuard, WriteGuard};
use crate::leaf::{Advice, Leaf};
use crate::range::{Claim, Mode, Range, join};
use crate::shared::{CLOSED, Lane, OPEN, Shared, Ticket};
use crate::tree::Tree;
use crate::wait::Request;
use lanefs_sync::Arc;
use lanefs_sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// A reader-writer lock over ranges of `u64`.
///
/// A thread locks a [`Range`] for reading, which other readers share, or for writing, which
/// excludes all other threads. Threads whose ranges do not overlap never wait for each other. The
/// lock contains no data: the points stand for whatever the caller protects, such as the bytes of a
/// file or the rows of a table.
///
/// Conflicting requests are served first in, first out; the [crate] lists all guarantees. A guard
/// releases its range when it is dropped, also by a panic. There is no poisoning.
///
/// A lock that is not contended has 256 bytes and no memory on the heap.
///
/// # Examples
/// ```
/// use lanefs_rangelock::{Range, RangeLock};
///
/// let lock = RangeLock::new();
/// std::thread::scope(|scope| {
///     for part in 0..4 {
///         let lock = &lock;
///         scope.spawn(move || {
///             let range = Range::with_len(part * 4096, 4096)?;
///             let guard = lock.write(range); // the parts do not overlap: no thread waits
///             assert_eq!(guard.range(), range);
///             Ok::<(), lanefs_rangelock::RangeError>(())
///         });
///     }
/// });
/// assert_eq!(lock.records(), []);
/// ```
// Aligned, so that two locks side by side share no line.
#[repr(C, align(64))]
pub struct RangeLock {
    /// The first leaf. Out of use once there is a tree.
    pub(crate) inline: Leaf,
    /// Null until the first leaf is full or contended.
    pub(crate) tree: AtomicPtr<Tree>,
    /// Null until readers contend.
    pub(crate) shared: AtomicPtr<Shared>,
    /// Whether readers may publish: `CLOSED`, `OPENING`, `OPEN` or `CLOSING`.
    pub(crate) bias: AtomicU32,
    pub(crate) timed_out: AtomicU32,
    pub(crate) waited: AtomicU64,
}

/// The size of an uncontended lock, which has no other memory.
#[cfg(not(loom))]
const _: () = assert!(size_of::<RangeLock>() <= 256);

/// The place of a guard's record.
pub(crate) enum Place<'a> {
    /// In one leaf: in this slot, if the leaf's version is still this.
    Slot { leaf: &'a Leaf, version: u64, slot: usize },
    /// Published in a lane.
    Lane { lane: &'a Lane, ticket: Ticket },
    /// In the queues of leaves, with this request.
    Queued(Arc<Request>),
    /// In the leaves under its range.
    Leaves,
}

/// The outcome of a request.
pub(crate) enum Admission<'a> {
    /// Granted. `Place` is only meaningful for a single claim.
    Granted(Place<'a>),
    /// Queued.
    Waiting(Arc<Request>),
    /// Not granted at once, and not queued.
    Refused,
}

impl RangeLock {
    /// Returns a lock without holders.
    ///
    /// It allocates nothing until it is contended or holds more than ten ranges.
    pub fn new() -> Self {
        Self {
            tree: AtomicPtr::default(),
            shared: AtomicPtr::default(),
            bias: AtomicU32::new(CLOSED),
            timed_out: AtomicU32::new(0),
            waited: AtomicU64::new(0),
            inline: Leaf::whole(),
        }
    }

    /// Locks `range` for reading, and blocks until that is possible.
    ///
    /// Other readers may hold the range at the same time. Earlier writers that hold or wait for a
    /// part of it go first. So a thread that holds a range as a reader and requests it again may
    /// deadlock with a writer that waits for the thread.
    ///
    /// # Examples
    /// ```
    /// # use lanefs_rangelock::{Range, RangeLock};
    /// let lock = RangeLock::new();
    /// let one = lock.read(Range::new(0, 100)?);
    /// let other = lock.read(Range::new(50, 150)?);
    /// assert!(lock.try_write(Range::new(149, 150)?).is_none());
    /// # drop((one, other));
    /// # Ok::<(), lanefs_rangelock::RangeError>(())
    /// ```
    #[inline]
    pub fn read(&self, range: Range) -> ReadGuard<'_> {
        match self.read_now(range) {
            Some(guard) => guard,
            None => ReadGuard(self.acquire(Claim { range, mode: Mode::Read })),
        }
    }

    /// Locks `range` for writing, and blocks until that is possible.
    ///
    /// No other thread holds a part of the range at the same time. All earlier requests that hold
    /// or wait for a part of it go first. A thread that holds a part of the range itself deadlocks.
    ///
    /// # Examples
    /// ```
    /// # use lanefs_rangelock::{Range, RangeLock};
    /// let lock = RangeLock::new();
    /// let guard = lock.write(Range::new(0, 100)?);
    /// assert!(lock.try_read(Range::new(99, 200)?).is_none());
    /// drop(guard);
    /// assert!(lock.try_read(Range::new(99, 200)?).is_some());
    /// # Ok::<(), lanefs_rangelock::RangeError>(())
    /// ```
    #[inline]
    pub fn write(&self, range: Range) -> WriteGuard<'_> {
        let claim = Claim { range, mode: Mode::Write };
        match self.go(claim) {
            Some(place) => WriteGuard(HeldRange::new(self, claim, place)),
            None => WriteGuard(self.acquire(claim)),
        }
    }

    /// Locks `range` for reading without blocking.
    ///
    /// Returns `None` if a writer holds or waits for a part of it.
    ///
    /// # Examples
    /// ```
    /// # use lanefs_rangelock::{Range, RangeLock};
    /// let lock = RangeLock::new();
    /// let reader = lock.read(Range::new(0, 100)?);
    /// assert!(lock.try_read(Range::new(50, 150)?).is_some());
    /// # drop(reader);
    /// # Ok::<(), lanefs_rangelock::RangeError>(())
    /// ```
    pub fn try_read(&self, range: Range) -> Option<ReadGuard<'_>> {
        self.read_now(range).or_else(|| self.try_acquire(Claim { range, mode: Mode::Read }).map(ReadGuard))
    }

    /// Locks `range` for writing without blocking.
    ///
    /// Returns `None` if another request holds or waits for a part of it.
    ///
    /// # Examples
    /// ```
    /// # use lanefs_rangelock::{Range, RangeLock};
    /// let lock = RangeLock::new();
    /// let reader = lock.read(Range::new(0, 100)?);
    /// assert!(lock.try_write(Range::new(99, 150)?).is_none());
    /// assert!(lock.try_write(Range::new(100, 150)?).is_some());
    /// # drop(reader);
    /// # Ok::<(), lanefs_rangelock::RangeError>(())
    /// ```
    pub fn try_write(&self, range: Range) -> Option<WriteGuard<'_>> {
        self.try_acquire(Claim { range, mode: Mode::Write }).map(WriteGuard)
    }

    /// Locks `range` for reading as [`read`](Self::read) does, but blocks for `patience` at most.
    ///
    /// Returns `None` if that was not long enough. Requests that waited for this one go on.
    ///
    /// # Examples
    /// ```
    /// # use lanefs_rangelock::{Range, RangeLock};
    /// # use std::time::Duration;
    /// let lock = RangeLock::new();
    /// let writer = lock.write(Range::ALL);
    /// assert!(lock.read_timeout(Range::new(0, 1)?, Duration::from_millis(1)).is_none());
    /// assert_eq!(lock.stats().timed_out, 1);
    /// # drop(writer);
    /// # Ok::<(), lanefs_rangelock::RangeError>(())
    /// ```
    pub fn read_timeout(&self, range: Range, patience: Duration) -> Option<ReadGuard<'_>> {
        self.read_now(range).or_else(|| {
            self.acquire_timeout(Claim { range, mode: Mode::Read }, Some(patience)).map(ReadGuard)
        })
    }

    /// Locks `range` for writing as [`write`](Self::write) does, but blocks for `patience` at most.
    ///
    /// Returns `None` if that was not long enough. Requests that waited for this one go on.
    pub fn write_timeout(&self, range: Range, patience: Duration) -> Option<WriteGuard<'_>> {
        self.acquire_timeout(Claim { range, mode: Mode::Write }, Some(patience)).map(WriteGuard)
    }

    /// Announces many readers and hardly a writer.
    ///
    /// If no writer holds or waits, each reader publishes its range in a lane of its thread from
    /// now on, and writes no cache line that another thread writes. Without this call, readers have
    /// to contend first. The next writer ends it. A hint: it changes no result.
    pub fn expect_readers(&self) {
        self.open();
    }

    /// Locks several ranges, and blocks until it has all of them.
    ///
    /// They queue as one request, so threads that name the same ranges in different order do not
    /// deadlock. Overlapping ranges are joined; the joined range is locked for writing if one of
    /// its parts is.
    ///
    /// # Examples
    /// ```
    /// # use lanefs_rangelock::{Mode, Range, RangeLock};
    /// let lock = RangeLock::new();
    /// let (from, to) = (Range::with_len(0, 512)?, Range::with_len(8192, 512)?);
    /// let copy = lock.lock_many(&[(to, Mode::Write), (from, Mode::Read)]);
    /// assert!(copy.ranges().eq([(from, Mode::Read), (to, Mode::Write)]));
    /// # Ok::<(), lanefs_rangelock::RangeError>(())
    /// ```
    pub fn lock_many(&self, ranges: &[(Range, Mode)]) -> ManyGuard<'_> {
        let claims = claims(ranges);
        match self.admit(&claims, true) {
            Admission::Waiting(request) => {
                self.waited.fetch_add(1, Ordering::Relaxed);
                request.wait(None);
                ManyGuard::new(self, claims, Some(request))
            }
            Admission::Granted(_) | Admission::Refused => ManyGuard::new(self, claims, None),
        }
    }

    /// Locks several ranges as [`lock_many`](Self::lock_many) does, but without blocking.
    ///
    /// Returns `None`, with none of them locked, if any has a conflicting holder or waiter.
    ///
    /// # Examples
    /// ```
    /// # use lanefs_rangelock::{Mode, Range, RangeLock};
    /// let lock = RangeLock::new();
    /// let (from, to) = (Range::with_len(0, 512)?, Range::with_len(8192, 512)?);
    /// let reader = lock.read(to);
    /// assert!(lock.try_lock_many(&[(from, Mode::Read), (to, Mode::Write)]).is_none());
    /// assert!(lock.try_lock_many(&[(from, Mode::Write), (to, Mode::Read)]).is_some());
    /// # drop(reader);
    /// # Ok::<(), lanefs_rangelock::RangeError>(())
    /// ```
    pub fn try_lock_many(&self, ranges: &[(Range, Mode)]) -> Option<ManyGuard<'_>> {
        let claims = claims(ranges);
        match self.admit(&claims, false) {
            Admission::Granted(_) => Some(ManyGuard::new(self, claims, None)),
            Admission::Waiting(_) | Admission::Refused => None,
        }
    }

    /// Locks several ranges as [`lock_many`](Self::lock_many) does, but blocks for `patience` at
    /// most.
    ///
    /// Returns `None`, with none of them locked, if that was not long enough.
    pub fn lock_many_timeout(&self, ranges: &[(Range, Mode)], patience: Duration) -> Option<ManyGuard<'_>> {
        let claims = claims(ranges);
        match self.admit(&claims, true) {
            Admission::Waiting(request) => self
                .wait(&claims, &request, Some(patience))
                .then(|| ManyGuard::new(self, claims, Some(request))),
            Admission::Granted(_) | Admission::Refused => Some(ManyGuard::new(self, claims, None)),
        }
    }

    /// Frees the memory that the lock has allocated, and resets its counters.
    ///
    /// No range is held: guards borrow the lock.
    pub fn trim(&mut self) {
        *self = Self::new();
    }

    #[inline]
    pub(crate) fn tree(&self) -> Option<&Tree> {
        // SAFETY: set once, from a box, and freed only by `drop`. Acquire: the tree is seen as it
        // was made.
        unsafe { self.tree.load(Ordering::Acquire).as_ref() }
    }

    #[inline]
    pub(crate) fn shared(&self) -> Option<&Shared> {
        // SAFETY: as above.
        unsafe { self.shared.load(Ordering::Acquire).as_ref() }
    }

    // Always inlined, as is `go`: their return values are too large for registers and would be
    // copied.
    #[inline(always)]
    pub(crate) fn read_now(&self, range: Range) -> Option<ReadGuard<'_>> {
        let claim = Claim { range, mode: Mode::Read };
        let place = if self.bias.load(Ordering::Relaxed) == OPEN { self.publish(range) } else { None };
        let place = match place {
            Some(place) => place,
            None => self.go(claim)?,
        };
        Some(ReadGuard(HeldRange::new(self, claim, place)))
    }

    /// Publishes a reader's range. None if the lock is not open.
    #[inline(always)]
    fn publish(&self, range: Range) -> Option<Place<'_>> {
        let lane = self.shared()?.lane()?;
        let ticket = lane.publish(range)?;
        // Acquire: accesses of writers before the lock was opened come before those of the reader.
        if self.bias.load(Ordering::Acquire) == OPEN {
            return Some(Place::Lane { lane, ticket });
        }
        if lane.free(ticket) { None } else { Some(Place::Leaves) }
    }

    /// Takes the fast path: one slot of one leaf. Returns `None` if the slow path is needed.
    #[inline(always)]
    fn go(&self, claim: Claim) -> Option<Place<'_>> {
        let (leaf, mut guard) = match self.tree() {
            None => (&self.inline, self.inline.lock()),
            Some(tree) => tree.lock(claim.range.first),
        };
        if !guard.covers(claim.range)
            || guard.has_queue()
            || guard.slot_in_the_way(claim)
            || (claim.mode == Mode::Write && self.bias.load(Ordering::Acquire) != CLOSED)
        {
            return None;
        }
        let slot = guard.put(claim)?;
        let advice = guard.note(claim.range.first, claim.mode);
        let place = Place::Slot { leaf, version: guard.version(), slot };
        drop(guard);
        if advice != Advice::Nothing {
            self.heed(advice);
        }
        Some(place)
    }

    #[cold]
    fn acquire(&self, claim: Claim) -> HeldRange<'_> {
        match self.acquire_timeout(claim, None) {
            Some(held) => held,
            None => unreachable!("there is no end to its patience"),
        }
    }

    fn acquire_timeout(&self, claim: Claim, patience: Option<Duration>) -> Option<HeldRange<'_>> {
        match self.admit(&[claim], true) {
            Admission::Granted(place) => Some(HeldRange::new(self, claim, place)),
            Admission::Waiting(request) => self
                .wait(&[claim], &request, patience)
                .then(|| HeldRange::new(self, claim, Place::Queued(request))),
            Admission::Refused => None,
        }
    }

    fn wait(&self, claims: &[Claim], request: &Arc<Request>, patience: Option<Duration>) -> bool {
        self.waited.fetch_add(1, Ordering::Relaxed);
        request.wait(patience) || {
            let late = self.cancel(claims, request);
            self.timed_out.fetch_add(u32::from(!late), Ordering::Relaxed);
            late
        }
    }

    fn try_acquire(&self, claim: Claim) -> Option<HeldRange<'_>> {
        let place = match self.go(claim) {
            Some(place) => place,
            None => match self.admit(&[claim], false) {
                Admission::Granted(place) => place,
                Admission::Waiting(_) | Admission::Refused => return None,
            },
        };
        Some(HeldRange::new(self, claim, place))
    }

    /// Lets go of `claim`.
    #[inline]
    pub(crate) fn release(&self, claim: Claim, place: &Place<'_>) {
        if let &Place::Slot { leaf, version, slot } = place {
            let mut guard = leaf.lock();
            if guard.version() == version && !guard.has_queue() {
                guard.free(slot);
                return;
            }
        }
        self.release_slow(claim, place);
    }
}

fn claims(ranges: &[(Range, Mode)]) -> Vec<Claim> {
    join(ranges.iter().map(|&(range, mode)| Claim { range, mode }).collect())
}

impl Default for RangeLock {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for RangeLock {
    fn drop(&mut self) {
        let tree = self.tree.load(Ordering::Acquire);
        if !tree.is_null() {
            // SAFETY: from `Box::into_raw`; no other thread has a reference to the lock any more.
            drop(unsafe { Box::from_raw(tree) });
        }
        let shared = self.shared.load(Ordering::Acquire);
        if !shared.is_null() {
            // SAFETY: as above.
            drop(unsafe { Box::from_raw(shared) });
        }
    }
}
