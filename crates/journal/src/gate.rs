//! The gate to the running transaction: starting a handle is one atomic add.
//!
//! There are two slots, and transactions take turns in them. A slot's word packs a closed flag, the
//! number of handles inside, and the credits that they hold or have used. To enter, a thread adds
//! one handle and its credits to the current slot's word, and looks at what was there before: open, and
//! credits left, and it is in. Otherwise it takes the sum away again and waits.
//!
//! The committer closes the slot, waits until the last handle has left, and opens the other slot for
//! the next transaction; only then the next handles run. So there is never a handle in two
//! transactions at a time, and what a closed transaction changed is final when the next one starts.
//!
//! A thread may still be between its add and its subtraction when the slot is used again: it then is
//! simply in the newer transaction, or leaves it as anybody would. That is why an open or closed slot is
//! never stored to, only added to; opening is a compare-exchange that waits until nobody is inside.
//! Who takes the handle count of a closed slot to zero wakes the committer, in either case.
//!
//! Sums cannot run over: credits have 43 bits, handles 20.

use crate::Tid;
use lanefs_sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use lanefs_sync::{Condvar, Mutex, thread};

const CLOSED: u64 = 1 << 63;
const HANDLE: u64 = 1 << 43;
const CREDITS: u64 = HANDLE - 1;

fn handles(word: u64) -> u64 {
    (word & !CLOSED) / HANDLE
}

#[derive(Debug)]
struct Slot {
    word: AtomicU64,
    /// Changes only while nobody is inside.
    tid: AtomicU32,
    /// Credits of the transaction. May grow while it is open.
    limit: AtomicU32,
}

impl Slot {
    /// Takes a handle out; whether it was the last of a closed slot.
    fn take_out(&self, unused: u32) -> bool {
        let before = self.word.fetch_sub(HANDLE + u64::from(unused), Ordering::AcqRel);
        before & CLOSED != 0 && handles(before) == 1
    }
}

#[derive(Debug)]
pub(crate) struct Gate {
    slots: [Slot; 2],
    current: AtomicUsize,
    /// Guards nothing: who waits looks at the words while holding it, who changes them for a
    /// waiter takes it before the notification.
    waiting: Mutex<()>,
    /// A slot was opened, or a limit grew.
    opened: Condvar,
    /// A closed slot is empty.
    drained: Condvar,
}

/// A handle's place in a transaction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) slot: usize,
    pub(crate) tid: Tid,
}

/// Why a thread could not enter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The transaction is closing; the next one comes.
    Closed,
    /// Not enough credits. `unused`: because even an empty transaction has too few.
    Full { tid: Tid, unused: bool },
}

impl Gate {
    /// An open gate to transaction `tid`, which has `limit` credits.
    pub(crate) fn new(tid: Tid, limit: u32) -> Self {
        let slot = |word| Slot {
            word: AtomicU64::new(word),
            tid: AtomicU32::new(tid.0),
            limit: AtomicU32::new(limit),
        };
        Self {
            slots: [slot(0), slot(CLOSED)],
            current: AtomicUsize::new(0),
            waiting: Mutex::new(()),
            opened: Condvar::new(),
            drained: Condvar::new(),
        }
    }

    fn slot(&self, index: usize) -> &Slot {
        &self.slots[index & 1]
    }

    /// The running transaction.
    pub(crate) fn running(&self) -> Place {
        let slot = self.current.load(Ordering::Acquire);
        Place { slot, tid: Tid(self.slot(slot).tid.load(Ordering::Acquire)) }
    }

    /// One attempt to enter. An error says also whether the committer must be woken now.
    fn attempt(&self, n: u32) -> Result<Place, (Refused, bool)> {
        let index = self.current.load(Ordering::Acquire);
        let slot = self.slot(index);
        let before = slot.word.fetch_add(HANDLE + u64::from(n), Ordering::AcqRel);
        let tid = Tid(slot.tid.load(Ordering::Acquire));
        let used = before & CREDITS;
        let why = if before & CLOSED != 0 {
            Refused::Closed
        } else if used + u64::from(n) <= u64::from(slot.limit.load(Ordering::Acquire)) {
            return Ok(Place { slot: index, tid });
        } else {
            Refused::Full { tid, unused: used == 0 }
        };
        Err((why, slot.take_out(n)))
    }

    /// Enters the running transaction with `n` credits. Before each wait, `refused` is told why, to
    /// set that in motion which will open the gate; it must not wait itself.
    pub(crate) fn enter<E>(
        &self,
        n: u32,
        mut refused: impl FnMut(Refused) -> Result<(), E>,
    ) -> Result<Place, E> {
        let (_, wake) = match self.attempt(n) {
            Ok(place) => return Ok(place),
            Err(refused) => refused,
        };
        let mut waiting = self.waiting.lock();
        if wake {
            self.drained.notify_all();
        }
        loop {
            let (why, wake) = match self.attempt(n) {
                Ok(place) => return Ok(place),
                Err(refused) => refused,
            };
            if wake {
                self.drained.notify_all();
            }
            refused(why)?;
            self.opened.wait(&mut waiting);
        }
    }

    /// Leaves a transaction and gives `unused` credits back.
    pub(crate) fn leave(&self, slot: usize, unused: u32) {
        if self.slot(slot).take_out(unused) {
            drop(self.waiting.lock());
            self.drained.notify_all();
        }
    }

    /// Takes `n` more credits for a handle inside, if there are that many.
    pub(crate) fn extend(&self, slot: usize, n: u32) -> bool {
        let slot = self.slot(slot);
        let before = slot.word.fetch_add(u64::from(n), Ordering::AcqRel) & CREDITS;
        let fits = before + u64::from(n) <= u64::from(slot.limit.load(Ordering::Acquire));
        if !fits {
            slot.word.fetch_sub(u64::from(n), Ordering::AcqRel);
        }
        fits
    }

    /// Closes the running transaction and waits until no handle is inside. One thread at a time.
    pub(crate) fn close(&self) -> Place {
        let place = self.running();
        let slot = self.slot(place.slot);
        slot.word.fetch_or(CLOSED, Ordering::AcqRel);
        let mut waiting = self.waiting.lock();
        while handles(slot.word.load(Ordering::Acquire)) != 0 {
            self.drained.wait(&mut waiting);
        }
        place
    }

    /// Opens the next transaction, after [`close`](Self::close).
    pub(crate) fn open_next(&self, tid: Tid, limit: u32) {
        let next = 1 - self.current.load(Ordering::Acquire);
        let slot = self.slot(next);
        // Nobody is inside for good, so nobody relies on these.
        slot.tid.store(tid.0, Ordering::Release);
        slot.limit.store(limit, Ordering::Release);
        self.unlock(slot);
        self.current.store(next, Ordering::Release);
        self.wake();
    }

    /// Opens the closed transaction again: it turned out to be empty.
    pub(crate) fn reopen(&self) {
        self.unlock(self.slot(self.current.load(Ordering::Acquire)));
        self.wake();
    }

    /// Takes the closed flag and all credits off a slot, once nobody is between add and subtraction.
    fn unlock(&self, slot: &Slot) {
        loop {
            let word = slot.word.load(Ordering::Acquire);
            let empty = handles(word) == 0;
            if empty && slot.word.compare_exchange(word, 0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return;
            }
            thread::yield_now();
        }
    }

    /// Raises the credits of the running transaction. Not while another thread opens one.
    pub(crate) fn raise_limit(&self, limit: u32) {
        let slot = self.slot(self.current.load(Ordering::Acquire));
        if slot.limit.fetch_max(limit, Ordering::AcqRel) < limit {
            self.wake();
        }
    }

    /// Lets all who wait to enter look again.
    pub(crate) fn wake(&self) {
        drop(self.waiting.lock());
        self.opened.notify_all();
    }
}

#[cfg(test)]
mod tests;
