//! The reader bias: readers acquire ranges without a write to a shared cache line.
//!
//! If many threads read and none writes, even a short critical section in a common leaf makes them
//! queue for its cache line. So such a lock can be *open*: a reader publishes its range in its own
//! lane, checks that the lock is still open, and holds the range. No record enters a leaf. A writer
//! that finds the lock open or opening closes it first.
//!
//! **Closing** moves every published range into the leaves, as the record of a granted reader, and
//! marks the lane as moved. After that all records are in the leaves, and the writer waits only for
//! conflicting ones, in the order of arrival. (Plain reader counters would not do: they name no
//! range, so a writer would wait for readers of other ranges, and a thread that reads one range and
//! then writes another would wait for itself.) Closing itself never waits for a reader to release
//! its range.
//!
//! **Opening** must prove that no writer is in any leaf, held or queued. It announces itself
//! (`OPENING`), then visits the leaves one by one, each under its lock. A writer that enters its
//! leaf before the visit is seen, and the opening is off. One that enters after has the leaf's lock
//! from the visitor, and so sees the announcement; it backs out, and closes.
//!
//! **The race between a reader that publishes and a writer that closes** is store-then-load on both
//! sides: the reader stores its lane, then loads `bias`; the writer stores `bias`, then loads the
//! lanes. A sequentially consistent fence between the two, on both sides, makes one see the other.
//! A reader that finds the lock no longer open takes its range back, unless it was moved already:
//! then it holds by that record.
//!
//! **A lane's word**: two bits of state, the rest a count of publications. Only the thread of that
//! lane publishes there, only when it is free; only a closer moves; the guard, on any thread,
//! frees. The count tells a closer that the range it read is still the range it moves.
//!
//! Hazard: opening, closing and a guard that leaves its lane for a record all hold `turn`, and hold
//! no leaf when they take it.

use crate::range::Range;
use lanefs_sync::Mutex;
use lanefs_sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// States of `RangeLock::bias`.
pub(crate) const CLOSED: u32 = 0;
pub(crate) const OPENING: u32 = 1;
pub(crate) const OPEN: u32 = 2;
pub(crate) const CLOSING: u32 = 3;

const FREE: u64 = 0;
const PUBLISHED: u64 = 1;
const MOVED: u64 = 2;
const STATE: u64 = 3;
const COUNT: u64 = 4;

/// After a closing, so many contended reads ask to open again before it is tried.
const PATIENCE: u32 = if cfg!(test) { 0 } else { 200 };

pub(crate) struct Shared {
    lanes: Box<[Lane]>,
    pub(crate) turn: Mutex<()>,
    patience: AtomicU32,
    pub(crate) closed: AtomicU64,
}

/// A lane, on cache lines of its own: two, since processors fetch them in pairs.
#[repr(align(128))]
pub(crate) struct Lane {
    word: AtomicU64,
    first: AtomicU64,
    last: AtomicU64,
}

/// One publication: free it with the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

impl Shared {
    pub(crate) fn new() -> Self {
        let lane = || Lane { word: AtomicU64::new(FREE), first: AtomicU64::new(0), last: AtomicU64::new(0) };
        Self {
            lanes: (0..lanes()).map(|_| lane()).collect(),
            turn: Mutex::new(()),
            patience: AtomicU32::new(0),
            closed: AtomicU64::new(0),
        }
    }

    /// Returns the lane of this thread, if there are enough.
    #[inline]
    pub(crate) fn lane(&self) -> Option<&Lane> {
        self.lanes.get(crate::thread_index::get())
    }

    pub(crate) fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    /// Returns whether it is time to open. Each refusal brings that nearer.
    pub(crate) fn is_time(&self) -> bool {
        let left = self.patience.load(Ordering::Relaxed);
        // A lost count among racing readers is no harm.
        self.patience.store(left.saturating_sub(1), Ordering::Relaxed);
        left == 0
    }

    pub(crate) fn was_closed(&self) {
        self.patience.store(PATIENCE, Ordering::Relaxed);
        self.closed.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns the number of lanes: twice the number of cores, so that a few more threads than cores
/// have one each, and some more for threads that start and end. A thread without a lane uses the
/// leaves.
fn lanes() -> usize {
    #[cfg(loom)]
    return 2;
    // Tests run beside each other in more threads than cores.
    #[cfg(all(test, not(loom)))]
    return 64;
    // As many on every machine: a seed replays a session.
    #[cfg(all(lanefs_schedule, not(any(loom, test))))]
    return 32;
    #[cfg(not(any(loom, test, lanefs_schedule)))]
    {
        static LANES: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
        *LANES.get_or_init(|| 2 * std::thread::available_parallelism().map_or(4, usize::from).max(16))
    }
}

impl Lane {
    /// Publishes `range`. The caller must be the thread of this lane. None if a range is published
    /// here already. The caller does not hold it before it has seen the lock open, after this.
    #[inline]
    pub(crate) fn publish(&self, range: Range) -> Option<Ticket> {
        // Acquire: the guard before us may have been freed by another thread.
        let word = self.word.load(Ordering::Acquire);
        if word & STATE != FREE {
            return None;
        }
        let ticket = (word | PUBLISHED).wrapping_add(COUNT);
        self.first.store(range.first, Ordering::Relaxed);
        self.last.store(range.last, Ordering::Relaxed);
        self.word.store(ticket, Ordering::Release);
        // loom switches threads before a write that another thread reads, and never at a fence.
        // This extra write, which changes nothing, makes it switch between the publication and the
        // fence.
        #[cfg(loom)]
        self.word.fetch_or(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        Some(Ticket(ticket))
    }

    /// Takes a range back. False if it was moved: then there is a record to release, and the lane
    /// is free too.
    #[inline]
    pub(crate) fn free(&self, ticket: Ticket) -> bool {
        let free = ticket.0 & !STATE;
        let freed = self.word.compare_exchange(ticket.0, free, Ordering::Release, Ordering::Acquire).is_ok();
        if !freed {
            self.word.store(free, Ordering::Release);
        }
        freed
    }

    /// Returns the published range, if there is one.
    pub(crate) fn published(&self) -> Option<(Range, Ticket)> {
        let word = self.word.load(Ordering::Acquire);
        let range =
            Range { first: self.first.load(Ordering::Relaxed), last: self.last.load(Ordering::Relaxed) };
        // Two halves of different ranges may be read here; then the word has moved on, and `moved`
        // refuses the ticket.
        (word & STATE == PUBLISHED && range.first <= range.last).then_some((range, Ticket(word)))
    }

    /// Marks a range as moved to the leaves. False if it was taken back in the meantime.
    pub(crate) fn moved(&self, ticket: Ticket) -> bool {
        let moved = (ticket.0 & !STATE) | MOVED;
        // Acquire on failure: the reader's accesses come before the writer's.
        self.word.compare_exchange(ticket.0, moved, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Returns how often a range was published here.
    pub(crate) fn count(&self) -> u64 {
        self.word.load(Ordering::Relaxed) / COUNT
    }
}
