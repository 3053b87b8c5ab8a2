//! [`RangeLock`]: what callers call, and the short way through it.
//!
//! The short way is: find the one leaf that sees the whole range, lock it, see nothing in the way,
//! take a slot, unlock. What does not fit, goes the long way (`admit.rs`), which knows everything
//! and starts afresh.

use crate::guard::{Held, ManyGuard, ReadGuard, WriteGuard};
use crate::leaf::{Advice, Leaf};
use crate::range::{Claim, Mode, Range, join};
use crate::shared::{CLOSED, Lane, OPEN, Shared, Ticket};
use crate::tree::Tree;
use crate::wait::Request;
use lanefs_sync::Arc;
use lanefs_sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// A lock over the points of `u64`, range by range: readers of a range share it, a writer has it
/// alone, and those who do not overlap do not meet. See the [crate](crate) for what it promises.
// Aligned, so that two locks side by side share no line.
#[repr(C, align(64))]
pub struct RangeLock {
    /// The first leaf. Out of use once there is a tree.
    pub(crate) inline: Leaf,
    /// Null until the first leaf was full or contended.
    pub(crate) tree: AtomicPtr<Tree>,
    /// Null until readers contended.
    pub(crate) shared: AtomicPtr<Shared>,
    /// Whether readers may publish: `CLOSED`, `OPENING`, `OPEN` or `CLOSING`.
    pub(crate) bias: AtomicU32,
    pub(crate) timed_out: AtomicU32,
    pub(crate) waited: AtomicU64,
}

/// What a lock costs that nobody contends for: it has no other memory.
#[cfg(not(loom))]
const _: () = assert!(size_of::<RangeLock>() <= 256);

/// Where the record of a guard is.
pub(crate) enum Place<'a> {
    /// In one leaf. If the leaf's version is still this, in this slot.
    Slot { leaf: &'a Leaf, version: u64, slot: usize },
    /// Published in a lane.
    Lane { lane: &'a Lane, ticket: Ticket },
    /// In queues, with this request.
    Queued(Arc<Request>),
    /// In the leaves under its range.
    Leaves,
}

/// What became of a request.
pub(crate) enum Admission<'a> {
    /// Let in. `Place` is meant for a single claim.
    Granted(Place<'a>),
    /// In line.
    Waiting(Arc<Request>),
    /// Not let in at once, and not in line.
    Refused,
}

impl RangeLock {
    /// A lock that nobody holds. It allocates nothing before it is contended or holds more than a
    /// few ranges.
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

    /// Waits to share `range` with other readers.
    ///
    /// Who holds a part of it as a writer, or waits for a part of it as a writer, goes first; so a
    /// thread that reads a range and asks to read it again may wait for a writer that waits for the
    /// thread.
    #[inline]
    pub fn read(&self, range: Range) -> ReadGuard<'_> {
        match self.read_now(range) {
            Some(guard) => guard,
            None => ReadGuard(self.acquire(Claim { range, mode: Mode::Read })),
        }
    }

    /// Waits to have `range` alone. Whoever holds, or waits for, a part of it goes first.
    #[inline]
    pub fn write(&self, range: Range) -> WriteGuard<'_> {
        let claim = Claim { range, mode: Mode::Write };
        match self.go(claim) {
            Some(place) => WriteGuard(Held::new(self, claim, place)),
            None => WriteGuard(self.acquire(claim)),
        }
    }

    /// Shares `range` with other readers, if nobody is in the way, holding or waiting.
    pub fn try_read(&self, range: Range) -> Option<ReadGuard<'_>> {
        self.read_now(range).or_else(|| self.try_acquire(Claim { range, mode: Mode::Read }).map(ReadGuard))
    }

    /// Takes `range` alone, if nobody is in the way, holding or waiting.
    pub fn try_write(&self, range: Range) -> Option<WriteGuard<'_>> {
        self.try_acquire(Claim { range, mode: Mode::Write }).map(WriteGuard)
    }

    /// As [`read`](Self::read), but gives up after `patience`.
    pub fn read_timeout(&self, range: Range, patience: Duration) -> Option<ReadGuard<'_>> {
        self.read_now(range).or_else(|| {
            self.acquire_timeout(Claim { range, mode: Mode::Read }, Some(patience)).map(ReadGuard)
        })
    }

    /// As [`write`](Self::write), but gives up after `patience`.
    pub fn write_timeout(&self, range: Range, patience: Duration) -> Option<WriteGuard<'_>> {
        self.acquire_timeout(Claim { range, mode: Mode::Write }, Some(patience)).map(WriteGuard)
    }

    /// Says that readers are to come and hardly a writer: if nobody writes now, they publish their
    /// ranges in lanes of their own from here on, without first having to be in each other's way. A
    /// writer ends that.
    pub fn expect_readers(&self) {
        self.open();
    }

    /// Waits for several ranges at once. They are in line all together, as one request, so callers
    /// who name the same ranges in different order do not wait for each other. Ranges that overlap
    /// are joined; if one of them is to be written, the whole of what was joined is.
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

    /// As [`lock_many`](Self::lock_many), if nobody is in the way of any of them.
    pub fn try_lock_many(&self, ranges: &[(Range, Mode)]) -> Option<ManyGuard<'_>> {
        let claims = claims(ranges);
        match self.admit(&claims, false) {
            Admission::Granted(_) => Some(ManyGuard::new(self, claims, None)),
            Admission::Waiting(_) | Admission::Refused => None,
        }
    }

    /// As [`lock_many`](Self::lock_many), but gives up after `patience`, on all of them.
    pub fn lock_many_timeout(&self, ranges: &[(Range, Mode)], patience: Duration) -> Option<ManyGuard<'_>> {
        let claims = claims(ranges);
        match self.admit(&claims, true) {
            Admission::Waiting(request) => self
                .wait(&claims, &request, Some(patience))
                .then(|| ManyGuard::new(self, claims, Some(request))),
            Admission::Granted(_) | Admission::Refused => Some(ManyGuard::new(self, claims, None)),
        }
    }

    /// Gives the memory of a busy time back. Nobody holds anything now: guards borrow the lock.
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

    // Always inlined, as `go`: what they return is too large for registers, and would be copied on
    // the way out.
    #[inline(always)]
    pub(crate) fn read_now(&self, range: Range) -> Option<ReadGuard<'_>> {
        let claim = Claim { range, mode: Mode::Read };
        let place = if self.bias.load(Ordering::Relaxed) == OPEN { self.publish(range) } else { None };
        let place = match place {
            Some(place) => place,
            None => self.go(claim)?,
        };
        Some(ReadGuard(Held::new(self, claim, place)))
    }

    /// Publishes a reader's range. None if the lock is not open.
    #[inline(always)]
    fn publish(&self, range: Range) -> Option<Place<'_>> {
        let lane = self.shared()?.lane()?;
        let ticket = lane.publish(range)?;
        // Acquire: what writers did before the lock was opened comes before what the reader will
        // see.
        if self.bias.load(Ordering::Acquire) == OPEN {
            return Some(Place::Lane { lane, ticket });
        }
        if lane.free(ticket) { None } else { Some(Place::Leaves) }
    }

    /// The short way.
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
    fn acquire(&self, claim: Claim) -> Held<'_> {
        match self.acquire_timeout(claim, None) {
            Some(held) => held,
            None => unreachable!("there is no end to its patience"),
        }
    }

    fn acquire_timeout(&self, claim: Claim, patience: Option<Duration>) -> Option<Held<'_>> {
        match self.admit(&[claim], true) {
            Admission::Granted(place) => Some(Held::new(self, claim, place)),
            Admission::Waiting(request) => self
                .wait(&[claim], &request, patience)
                .then(|| Held::new(self, claim, Place::Queued(request))),
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

    fn try_acquire(&self, claim: Claim) -> Option<Held<'_>> {
        let place = match self.go(claim) {
            Some(place) => place,
            None => match self.admit(&[claim], false) {
                Admission::Granted(place) => place,
                Admission::Waiting(_) | Admission::Refused => return None,
            },
        };
        Some(Held::new(self, claim, place))
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
            // SAFETY: from `Box::into_raw`; nobody else has the lock any more.
            drop(unsafe { Box::from_raw(tree) });
        }
        let shared = self.shared.load(Ordering::Acquire);
        if !shared.is_null() {
            // SAFETY: as above.
            drop(unsafe { Box::from_raw(shared) });
        }
    }
}
