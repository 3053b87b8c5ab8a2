//! A leaf: an interval of points, and all records that touch it.
//!
//! A leaf covers the points `lo..=hi`, its fence. The fences of all leaves together cover every
//! point once. A record (a held or awaited range) is stored, with its full range, in each leaf that
//! it touches: almost always one. So a thread that has locked the leaves under a range sees every
//! record that can conflict with it.
//!
//! **One conflict, one count.** Two records may meet in several leaves. Their conflict belongs to
//! the leaf that holds the first point they have in common, and only there is it counted and taken
//! off again. Moving fences (split, merge) moves whole points, so a conflict moves with its point
//! and no count needs mending.
//!
//! **Slots and queue.** Records that were granted at once are in `slots`, in no order. A record
//! that must wait is appended to `queue`, and stays there when it is granted, until it is released:
//! the queue is in order of arrival. A leaf that is full and cannot be split (many ranges over the
//! same points) keeps more holders there, without a request. Holders have no conflict with anything
//! before them, so their place in the queue means nothing.
//!
//! **The word.** Bit 0: locked. The rest is a version that only grows, by one for each time that a
//! slot may have changed its owner other than by its own guard. A guard remembers leaf, version and
//! slot; if the version is the same, its record is in that slot, and the release touches one cache
//! line. Leaves are type-stable: their memory stays a leaf until the whole lock is dropped, so a
//! guard or a descent may lock a leaf that has moved on. It then finds that the fence (or the
//! version) is not the one it came for. A leaf out of use has a fence that holds no point.
//!
//! Hazards: a lock is held for tens of instructions and never across a wait; several leaves are
//! locked in ascending order of their fences only. A thread that holds a leaf only tries to lock
//! another: until that is locked, its fence may change to lower points (`tree/mod.rs`).

use crate::range::{Claim, Mode, Range};
use crate::thread_index;
use crate::wait::{Request, Woken};
use lanefs_sync::atomic::{AtomicU64, Ordering};
use lanefs_sync::cell::{MutPtr, UnsafeCell};
use lanefs_sync::{Arc, hint, thread};
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::thread::sleep;
use std::time::Duration;

/// Records that a leaf keeps in place.
pub(crate) const SLOTS: usize = if cfg!(loom) { 2 } else { 10 };

const LOCKED: u64 = 1;
const VERSION: u64 = 2;

/// The amount that a contended acquisition adds to `heat`. An uncontended one subtracts 1 if the
/// previous acquisition was by another thread: with more threads than cores, contending threads run
/// at the same time only now and then.
const HEAT_UP: u16 = 1000;
/// Above this, the leaf is worth splitting: more than one in a thousand such acquisitions of late
/// was contended.
const HEAT_MAX: u16 = if cfg!(loom) { u16::MAX } else { 2000 };
/// Reads in a row after which a contended leaf suggests that readers publish (see `shared.rs`).
const CALM: u8 = if cfg!(loom) { u8::MAX } else { 64 };

// In this order, with the first slot, it fills a cache line: an acquisition of an empty leaf
// touches no other.
#[repr(C)]
pub(crate) struct Leaf {
    word: AtomicU64,
    body: UnsafeCell<Body>,
}

// SAFETY: `body` is reached only through a `LeafGuard`, of which `word` admits one at a time.
unsafe impl Send for Leaf {}
// SAFETY: as above.
unsafe impl Sync for Leaf {}

/// A record that waits, has waited, or found no slot.
pub(crate) struct QueueEntry {
    pub(crate) claim: Claim,
    /// None: a holder without a slot.
    pub(crate) request: Option<Arc<Request>>,
}

#[repr(C)]
pub(crate) struct Body {
    pub(crate) lo: u64,
    pub(crate) hi: u64,
    used: u16,
    writes: u16,
    heat: u16,
    calm: u8,
    /// The mark of the thread that came last.
    last: u8,
    // Boxed twice so that a leaf without waiters, nearly every one, pays for one pointer.
    #[allow(clippy::box_collection)]
    queue: Option<Box<Vec<QueueEntry>>>,
    pub(crate) acquired: u64,
    slots: [Range; SLOTS],
    pub(crate) retried: u64,
}

/// A locked leaf.
pub(crate) struct LeafGuard<'a> {
    leaf: &'a Leaf,
    body: ManuallyDrop<MutPtr<Body>>,
    word: u64,
    contended: bool,
}

/// A leaf's advice against its contention, to be followed after it is unlocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    Nothing,
    /// Give the points from here on to a leaf of their own.
    SplitAt(u64),
    /// Let readers publish instead of coming here.
    Share,
}

impl Leaf {
    /// Returns a leaf that answers for no point.
    pub(crate) fn unused() -> Self {
        Self {
            word: AtomicU64::new(0),
            body: UnsafeCell::new(Body {
                lo: 1,
                hi: 0,
                used: 0,
                writes: 0,
                heat: 0,
                calm: 0,
                last: 0,
                queue: None,
                acquired: 0,
                retried: 0,
                slots: [Range::ALL; SLOTS],
            }),
        }
    }

    /// Returns a leaf that answers for every point.
    pub(crate) fn whole() -> Self {
        let leaf = Self::unused();
        {
            let mut body = leaf.lock();
            body.lo = 0;
            body.hi = u64::MAX;
        }
        leaf
    }

    /// Asks for the lines of the slots; else they would wait for the line of the word, since
    /// nothing is read past a locked write.
    #[inline]
    pub(crate) fn prefetch(&self) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        for line in 1..size_of::<Self>().div_ceil(64) {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a hint, of an address in this leaf; it reads nothing that the program could
            // see.
            unsafe {
                _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(self).cast::<i8>().wrapping_add(line * 64))
            };
        }
    }

    #[inline(always)]
    pub(crate) fn lock(&self) -> LeafGuard<'_> {
        if self.acquire() {
            return self.guard(false);
        }
        self.acquire_contended();
        self.guard(true)
    }

    pub(crate) fn try_lock(&self) -> Option<LeafGuard<'_>> {
        self.acquire().then(|| self.guard(false))
    }

    /// Tries to lock the leaf as [`try_lock`](Self::try_lock) does, after an attempt that failed:
    /// the acquisition counts as contended.
    pub(crate) fn try_lock_again(&self) -> Option<LeafGuard<'_>> {
        self.acquire_again().then(|| self.guard(true))
    }

    /// Tries to take the leaf. No load first: it would fetch the line as shared, and the write
    /// would have to ask for it again. (So do not keep the result: x86 has one instruction that
    /// sets and tests a bit, and a loop with a load for all else.)
    #[cfg(not(loom))]
    #[inline]
    fn acquire(&self) -> bool {
        self.word.fetch_or(LOCKED, Ordering::Acquire) & LOCKED == 0
    }

    /// Tries to take the leaf. Writes nothing if the leaf is locked: loom takes it that the
    /// holder's store may come before our write of what we read before it.
    #[cfg(loom)]
    fn acquire(&self) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        word & LOCKED == 0
            && self.word.compare_exchange(word, word | LOCKED, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[inline]
    fn guard(&self, contended: bool) -> LeafGuard<'_> {
        // Only the holder changes the word now.
        let word = self.word.load(Ordering::Relaxed) & !LOCKED;
        LeafGuard { leaf: self, body: ManuallyDrop::new(self.body.get_mut()), word, contended }
    }

    /// Tries to take the leaf after an attempt that failed. A load first: while the leaf is locked,
    /// a write would take the line away from its holder.
    fn acquire_again(&self) -> bool {
        self.word.load(Ordering::Relaxed) & LOCKED == 0 && self.acquire()
    }

    #[cold]
    fn acquire_contended(&self) {
        let mut backoff = Backoff::default();
        while !self.acquire_again() {
            backoff.pause();
        }
    }
}

/// The pauses of a thread between its attempts to lock a leaf.
#[derive(Default)]
pub(crate) struct Backoff(u32);

impl Backoff {
    /// Spins as long as a running holder may need. After that the holder has probably been
    /// preempted, and this thread yields its core.
    pub(crate) fn pause(&mut self) {
        self.0 = self.0.saturating_add(1);
        if cfg!(any(loom, lanefs_schedule)) {
            thread::yield_now();
        } else if self.0 < 50 {
            hint::spin_loop();
        } else if self.0 < 100 {
            thread::yield_now();
        } else {
            sleep(Duration::from_micros(50));
        }
    }
}

impl Deref for LeafGuard<'_> {
    type Target = Body;
    #[inline]
    fn deref(&self) -> &Body {
        // SAFETY: the leaf is locked as long as the guard lives, and the guard is borrowed.
        self.body.with(|body| unsafe { &*body })
    }
}

impl DerefMut for LeafGuard<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Body {
        // SAFETY: as above, and the guard is borrowed mutably.
        self.body.with(|body| unsafe { &mut *body })
    }
}

impl Drop for LeafGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.contended {
            self.heat = self.heat.saturating_add(HEAT_UP);
            self.retried += 1;
        }
        // SAFETY: not used after this. It must be gone before the leaf is unlocked.
        unsafe { ManuallyDrop::drop(&mut self.body) };
        self.leaf.word.store(self.word, Ordering::Release);
    }
}

impl<'a> LeafGuard<'a> {
    #[inline]
    pub(crate) fn leaf(&self) -> &'a Leaf {
        self.leaf
    }

    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.word
    }

    /// Increments the version: the slot that a guard remembers may be wrong.
    pub(crate) fn outdate(&mut self) {
        self.word = self.word.wrapping_add(VERSION);
    }

    /// Notes an acquisition at `point`.
    #[inline]
    pub(crate) fn note(&mut self, point: u64, mode: Mode) -> Advice {
        let contended = self.contended;
        let body = &mut **self;
        body.acquired += 1;
        body.calm = if mode == Mode::Read { body.calm.saturating_add(1) } else { 0 };
        let mark = thread_index::mark();
        let another = std::mem::replace(&mut body.last, mark) != mark;
        if !contended {
            body.heat = body.heat.saturating_sub(u16::from(another));
            return Advice::Nothing;
        }
        if mode == Mode::Read && body.calm >= CALM {
            return Advice::Share;
        }
        if body.heat < HEAT_MAX {
            return Advice::Nothing;
        }
        let Some(pivot) = body.middle(point) else { return Advice::Nothing };
        // Both parts keep some of it: where many threads meet, one split is seldom enough.
        body.heat = HEAT_MAX - HEAT_UP;
        Advice::SplitAt(pivot)
    }
}

impl Body {
    #[inline]
    pub(crate) fn has(&self, point: u64) -> bool {
        self.lo <= point && point <= self.hi
    }

    /// Returns whether the leaf sees all of `range`.
    #[inline]
    pub(crate) fn covers(&self, range: Range) -> bool {
        self.lo <= range.first && range.last <= self.hi
    }

    pub(crate) fn touches(&self, range: Range) -> bool {
        self.lo <= range.last && range.first <= self.hi
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.used == 0 && self.queue.is_none()
    }

    #[inline]
    pub(crate) fn has_queue(&self) -> bool {
        self.queue.is_some()
    }

    pub(crate) fn has_writers(&self) -> bool {
        self.writes != 0 || self.has_queue()
    }

    /// Returns the slots whose records overlap `range`, as bits.
    #[inline(always)]
    fn hits(&self, range: Range) -> u16 {
        let mut hits = 0;
        for (i, slot) in self.slots[..self.top()].iter().enumerate() {
            // Not `&&`: a branch on either comparison would be guessed wrong half of the time.
            hits |= u16::from((slot.first <= range.last) & (range.first <= slot.last)) << i;
        }
        hits & self.used
    }

    /// Returns one above the highest slot in use.
    #[inline]
    fn top(&self) -> usize {
        ((u16::BITS - self.used.leading_zeros()) as usize).min(SLOTS)
    }

    /// Returns whether a slot's record conflicts with `claim`. All of `claim` must be inside the
    /// fence.
    #[inline]
    pub(crate) fn slot_in_the_way(&self, claim: Claim) -> bool {
        let hits = self.hits(claim.range);
        (if claim.mode == Mode::Read { hits & self.writes } else { hits }) != 0
    }

    /// Returns the middle of the places where records are or were of late, with `point` among them.
    /// `None` if there is but one.
    #[cold]
    fn middle(&self, point: u64) -> Option<u64> {
        let slots = self.slots.iter().map(|range| range.first).filter(|&first| self.has(first));
        let mut points: Vec<u64> = slots.chain([point]).collect();
        points.sort_unstable();
        points.dedup();
        points.get(points.len() / 2).copied().filter(|&middle| middle > self.lo)
    }

    /// Puts a holder into a free slot.
    #[inline]
    pub(crate) fn put(&mut self, claim: Claim) -> Option<usize> {
        let slot = (!self.used).trailing_zeros() as usize;
        *self.slots.get_mut(slot)? = claim.range;
        self.used |= 1 << slot;
        self.writes |= u16::from(claim.mode == Mode::Write) << slot;
        Some(slot)
    }

    /// Puts a holder into a slot, or into the queue if there is none.
    pub(crate) fn put_anyhow(&mut self, claim: Claim) -> Option<usize> {
        let slot = self.put(claim);
        if slot.is_none() {
            self.enqueue(claim, None);
        }
        slot
    }

    pub(crate) fn enqueue(&mut self, claim: Claim, request: Option<&Arc<Request>>) {
        self.queue.get_or_insert_default().push(QueueEntry { claim, request: request.cloned() });
    }

    #[inline]
    pub(crate) fn free(&mut self, slot: usize) {
        self.used &= !(1 << slot);
        self.writes &= !(1 << slot);
    }

    /// Returns whether `slot` holds a record equal to `claim`. Two equal records may stand in for
    /// each other.
    pub(crate) fn is_in(&self, slot: usize, claim: Claim) -> bool {
        self.used & (1 << slot) != 0 && self.slots[slot] == claim.range && self.mode(slot) == claim.mode
    }

    fn mode(&self, slot: usize) -> Mode {
        if self.writes & (1 << slot) != 0 { Mode::Write } else { Mode::Read }
    }

    /// Returns the records in slots.
    pub(crate) fn holders(&self) -> impl Iterator<Item = (usize, Claim)> {
        (0..self.top())
            .filter(|i| self.used & (1 << i) != 0)
            .map(|i| (i, Claim { range: self.slots[i], mode: self.mode(i) }))
    }

    /// Returns the records in the queue, in order of arrival.
    pub(crate) fn queue(&self) -> &[QueueEntry] {
        self.queue.as_deref().map_or(&[], Vec::as_slice)
    }

    /// Returns whether the first point that the two have in common is inside the fence.
    fn meet_here(&self, a: Range, b: Range) -> bool {
        a.overlaps(&b) && self.has(a.first.max(b.first))
    }

    /// Returns how many records here are in the way of `claim`.
    pub(crate) fn blockers(&self, claim: Claim) -> usize {
        let counts = |other: Claim| other.conflicts(&claim) && self.meet_here(other.range, claim.range);
        self.holders().filter(|&(_, c)| counts(c)).count()
            + self.queue().iter().filter(|e| counts(e.claim)).count()
    }

    /// Takes a record out; whose it is must not be in doubt: its request, or one without.
    /// Returns where in the queue it stood; a holder stood before all.
    pub(crate) fn take(&mut self, claim: Claim, request: Option<&Arc<Request>>) -> usize {
        let slot = self.holders().find(|&(_, c)| c == claim).map(|(i, _)| i);
        if let (Some(slot), None) = (slot, request) {
            self.free(slot);
            return 0;
        }
        let mine = |e: &QueueEntry| match (&e.request, request) {
            (Some(theirs), Some(mine)) => Arc::ptr_eq(theirs, mine) && e.claim == claim,
            (None, None) => e.claim == claim,
            _ => false,
        };
        let Some(at) = self.queue().iter().position(mine) else {
            debug_assert!(false, "{claim:?} is not in {}..={}", self.lo, self.hi);
            return 0;
        };
        if let Some(queue) = &mut self.queue {
            queue.remove(at);
            if queue.is_empty() {
                self.queue = None;
            }
        }
        at
    }

    /// Updates the counts of waiters after record `before` was replaced by `now`: the waiters
    /// behind place `from` of the queue whose conflict with `before` is counted in this leaf.
    pub(crate) fn recount(&self, before: Claim, now: &[Claim], from: usize, woken: &mut Woken) {
        for entry in self.queue().iter().skip(from) {
            let Some(request) = &entry.request else { continue };
            if before.conflicts(&entry.claim) && self.meet_here(before.range, entry.claim.range) {
                let now = now.iter().filter(|c| c.conflicts(&entry.claim)).count();
                if request.recount(1, now) {
                    woken.push(request);
                }
            }
        }
    }

    /// Returns how many slots are free.
    pub(crate) fn room(&self) -> usize {
        SLOTS - self.used.count_ones() as usize
    }

    /// Returns a point to split at so that `claims`, which find no room here, are nearer to finding
    /// it; `None` if there is none, because everything overlaps everything.
    pub(crate) fn pivot(&self, claims: &[Claim]) -> Option<u64> {
        let mut all: Vec<Range> = self.holders().map(|(_, c)| c.range).collect();
        let new = claims.iter().map(|c| c.range).filter(|&r| self.touches(r));
        let held = all.len();
        all.extend(new);
        let [lowest, highest] =
            [all[..held].iter().map(|r| r.first).min(), all[..held].iter().map(|r| r.first).max()];
        let mut points: Vec<u64> = all.iter().map(|r| r.first).collect();
        points.sort_unstable();
        // If the new record is at either end, the full leaf stays as it is, and a new leaf takes
        // the record. Otherwise the middle, or the next best point where ranges overlap.
        let end = match all[held..] {
            [new] if Some(new.first) > highest => Some(new.first),
            [new] if Some(new.first) < lowest => lowest,
            _ => None,
        };
        let middle = points[points.len() / 2];
        let ends = all.iter().filter_map(|r| r.last.checked_add(1));
        end.into_iter().chain([middle]).chain(points.iter().copied()).chain(ends).find(|&p| {
            let left = all.iter().filter(|r| r.first < p).count();
            let right = all.iter().filter(|r| r.last >= p).count();
            self.has(p) && p > self.lo && left < all.len() && right < all.len()
        })
    }

    /// Moves the points from `pivot` on, and the records that touch them, to `right`, which is out
    /// of use. True if a record that was here is here no more, or not only here.
    pub(crate) fn split_into(&mut self, pivot: u64, right: &mut Body) -> bool {
        debug_assert!(self.lo < pivot && pivot <= self.hi && right.is_empty());
        let (left_fence, right_fence) = ((self.lo, pivot - 1), (pivot, self.hi));
        let moved: Vec<(usize, Claim)> = self.holders().filter(|(_, c)| c.range.last >= pivot).collect();
        (right.lo, right.hi) = right_fence;
        right.heat = self.heat;
        for &(slot, claim) in &moved {
            if claim.range.first >= pivot {
                self.free(slot);
            }
            right.put_anyhow(claim);
        }
        for entry in self.queue.take().into_iter().flat_map(|q| *q) {
            if entry.claim.range.last >= pivot {
                right.enqueue(entry.claim, entry.request.as_ref());
            }
            if entry.claim.range.first < pivot {
                self.enqueue(entry.claim, entry.request.as_ref());
            }
        }
        (self.lo, self.hi) = left_fence;
        !moved.is_empty()
    }

    /// Moves everything to `other`, which is out of use.
    pub(crate) fn move_to(&mut self, other: &mut Body) {
        debug_assert!(other.is_empty());
        (other.lo, other.hi) = (self.lo, self.hi);
        (other.used, other.writes, other.slots) = (self.used, self.writes, self.slots);
        other.queue = self.queue.take();
        other.calm = self.calm;
        self.retire();
    }

    /// Retires an empty leaf: its fence holds no point, so a thread that reaches it by a stale
    /// pointer sees that it is out of use.
    pub(crate) fn retire(&mut self) {
        (self.lo, self.hi, self.used, self.writes, self.heat, self.calm) = (1, 0, 0, 0, 0, 0);
    }
}
