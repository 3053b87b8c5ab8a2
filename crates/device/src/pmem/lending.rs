//! Tracks the bytes of a mapping that are lent as slices, so that no thread writes them meanwhile.
//!
//! A writer announces itself on a lane, then checks whether any range is lent. A lender publishes
//! its range, then waits until it has seen each lane empty once. A writer modifies only its lane's
//! cache line. Lending never blocks a writer: one that overlaps a lent range fails. A lender gives
//! up after a moment, so it never hangs behind a steady stream of writers.
//!
//! Invariants:
//! - All these accesses are SeqCst. So of a concurrent writer and lender at least one sees the
//!   other: the writer finds the range and refuses, or the lender waits for the writer.
//! - A slot's range is changed only while its bit in `lent` is clear. A writer that still reads the
//!   old range announced itself before the bit was set again, so the new lender waits for it,
//!   whatever mixture of ranges the writer has read.

#[cfg(loom)]
use loom::{
    hint::spin_loop,
    sync::atomic::{AtomicU64, Ordering},
    thread::yield_now,
};
#[cfg(not(loom))]
use std::{
    hint::spin_loop,
    sync::atomic::{AtomicU64, Ordering},
    thread::yield_now,
};

/// Lanes of writers: a thread always takes the same one.
const LANES: usize = if cfg!(loom) { 1 } else { 16 };
/// Ranges that can be lent at once: bits of a word.
const SLOTS: u32 = 64;
/// How often a lender looks at a lane that is not empty before it sleeps.
const PATIENCE: u32 = if cfg!(loom) { 3 } else { 2000 };

/// One lane: writers under way. A cache line pair of its own.
#[repr(align(128))]
#[derive(Debug)]
struct Lane(AtomicU64);

/// A lent range; meaningless while its bit is clear.
#[derive(Debug)]
struct Slot {
    start: AtomicU64,
    end: AtomicU64,
}

/// The active writers and the lent ranges.
#[derive(Debug)]
pub(super) struct Lending {
    lanes: Vec<Lane>,
    words: Words,
    slots: Vec<Slot>,
}

/// The words of the slots, on cache lines that writers do not modify.
#[repr(align(128))]
#[derive(Debug)]
struct Words {
    /// Slots that a lender has or is about to fill.
    taken: AtomicU64,
    /// Slots whose range is lent.
    lent: AtomicU64,
}

impl Lending {
    pub(super) fn new() -> Self {
        let slot = || Slot { start: AtomicU64::new(0), end: AtomicU64::new(0) };
        Self {
            lanes: (0..LANES).map(|_| Lane(AtomicU64::new(0))).collect(),
            words: Words { taken: AtomicU64::new(0), lent: AtomicU64::new(0) },
            slots: (0..if cfg!(loom) { 2 } else { SLOTS }).map(|_| slot()).collect(),
        }
    }

    /// Announces a write of `start..end`, until drop. `None` where a part of it is lent.
    #[inline]
    pub(super) fn write(&self, start: u64, end: u64) -> Option<Writing<'_>> {
        let lane = &self.lanes[lane_of_thread() % self.lanes.len()].0;
        lane.fetch_add(1, Ordering::SeqCst);
        total_order();
        let writing = Writing { lane };
        let lent = self.words.lent.load(Ordering::SeqCst);
        if lent != 0 && self.overlaps(lent, start, end) { None } else { Some(writing) }
    }

    #[cold]
    fn overlaps(&self, lent: u64, start: u64, end: u64) -> bool {
        self.slots.iter().enumerate().filter(|(i, _)| lent & 1 << i != 0).any(|(_, slot)| {
            start < slot.end.load(Ordering::Relaxed) && slot.start.load(Ordering::Relaxed) < end
        })
    }

    /// Lends `start..end`; its slot is for [`give_back`](Self::give_back). `None` where too much is
    /// lent, or writers did not make way in time.
    pub(super) fn lend(&self, start: u64, end: u64) -> Option<u32> {
        let slot = self.take_slot()?;
        let range = self.slots.get(slot as usize)?;
        range.start.store(start, Ordering::Relaxed);
        range.end.store(end, Ordering::Relaxed);
        self.words.lent.fetch_or(1 << slot, Ordering::SeqCst);
        total_order();
        if self.lanes.iter().all(|lane| seen_empty(&lane.0)) {
            return Some(slot);
        }
        self.give_back(slot);
        None
    }

    /// Ends a [`lend`](Self::lend).
    pub(super) fn give_back(&self, slot: u32) {
        // Release: a writer that sees the bit clear comes after every read of the slice.
        self.words.lent.fetch_and(!(1 << slot), Ordering::SeqCst);
        self.words.taken.fetch_and(!(1 << slot), Ordering::Release);
    }

    fn take_slot(&self) -> Option<u32> {
        let mut taken = self.words.taken.load(Ordering::Relaxed);
        loop {
            let slot = taken.trailing_ones();
            if slot as usize >= self.slots.len() {
                return None;
            }
            let with = taken | 1 << slot;
            match self.words.taken.compare_exchange_weak(taken, with, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(slot),
                Err(now) => taken = now,
            }
        }
    }
}

/// Does nothing but in the model, which knows the one order of all SeqCst accesses only where
/// fences make it.
#[inline]
fn total_order() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}

fn seen_empty(lane: &AtomicU64) -> bool {
    for round in 0..PATIENCE {
        if lane.load(Ordering::SeqCst) == 0 {
            return true;
        }
        if round < 200 && !cfg!(loom) { spin_loop() } else { yield_now() }
    }
    false
}

/// A write under way.
#[derive(Debug)]
pub(super) struct Writing<'a> {
    lane: &'a AtomicU64,
}

impl Drop for Writing<'_> {
    #[inline]
    fn drop(&mut self) {
        // Streamed bytes have been fenced; this orders other stores before a lender that sees it.
        self.lane.fetch_sub(1, Ordering::Release);
    }
}

/// Returns a number of this thread, small and dense.
fn lane_of_thread() -> usize {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicUsize, Ordering};
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static MINE: Cell<usize> = const { Cell::new(usize::MAX) });
    MINE.with(|mine| {
        if mine.get() == usize::MAX {
            mine.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        mine.get()
    })
}

#[cfg(all(test, loom))]
#[allow(unsafe_code)]
mod tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    /// A writer and a lender of one byte: loom finds an unsynchronised access, if there is one.
    #[test]
    fn lent_bytes_are_not_written() {
        loom::model(|| {
            let shared = Arc::new((Lending::new(), UnsafeCell::new(0_u32)));
            let theirs = Arc::clone(&shared);
            let writer = thread::spawn(move || {
                for _ in 0..2 {
                    if let Some(_writing) = theirs.0.write(10, 20) {
                        // SAFETY: the model reports a concurrent access.
                        theirs.1.with_mut(|byte| unsafe { *byte += 1 });
                    }
                }
            });
            for _ in 0..2 {
                if let Some(slot) = shared.0.lend(15, 16) {
                    // SAFETY: as above.
                    shared.1.with(|byte| unsafe { *byte });
                    shared.0.give_back(slot);
                }
            }
            writer.join().unwrap();
        });
    }

    /// A slot that is lent anew, elsewhere, while a writer may still read its old range.
    #[test]
    fn a_slot_is_used_again() {
        loom::model(|| {
            let shared = Arc::new((Lending::new(), UnsafeCell::new(0_u32)));
            let theirs = Arc::clone(&shared);
            let writer = thread::spawn(move || {
                if let Some(_writing) = theirs.0.write(10, 20) {
                    // SAFETY: the model reports a concurrent access.
                    theirs.1.with_mut(|byte| unsafe { *byte += 1 });
                }
            });
            if let Some(slot) = shared.0.lend(100, 101) {
                shared.0.give_back(slot);
            }
            if let Some(slot) = shared.0.lend(15, 16) {
                // SAFETY: as above.
                shared.1.with(|byte| unsafe { *byte });
                shared.0.give_back(slot);
            }
            writer.join().unwrap();
        });
    }
}
