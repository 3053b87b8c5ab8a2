//! The gate to the running transaction: starting a handle is one atomic add.
//!
//! There are two slots, which transactions use in turn. A slot's word packs a closed flag, the
//! number of open handles, and the credits that they hold or have used. To enter, a thread adds one
//! handle and its credits to the current slot's word. If the word before the addition was open and
//! had enough credits left, the thread has entered. Otherwise it subtracts the sum again and queues
//! up.
//!
//! **The queue** is first in, first out, and no thread overtakes a queued one. The thread that
//! makes room admits the sleepers: the committer, when it opens a transaction or raises its limit,
//! or a handle that returns unused credits. It enters on a sleeper's behalf and wakes it
//! afterwards, so only sleepers that can proceed wake up. If the first sleeper does not fit, open
//! handles may still return credits. If it does not fit after the last handle has left, a commit
//! must make room: the thread that finds this gets [`Refused::Full`] and requests one.
//!
//! The committer closes the slot, waits until the last handle has left, and then opens the other
//! slot for the next transaction. So only one transaction has handles at a time, and the changes of
//! a closed transaction are final when the next one starts.
//!
//! Hazards:
//!
//! - A refused thread may still be between its addition and its subtraction when the slot is
//!   reused. It then counts as a handle of the newer transaction until it subtracts. So no thread
//!   stores to a slot's word: threads only add and subtract, and opening is a compare-exchange that
//!   waits until no handle is counted.
//! - The thread that takes the handle count of a closed slot to zero wakes the committer, whether
//!   it held a handle or was refused.
//! - The transient sum of a refused thread may keep another thread out. The refused thread then
//!   queues up and tries to admit the whole queue, so the other thread is not forgotten.
//!
//! The sums cannot overflow: credits have 43 bits, handles 20.

use crate::Tid;
use crate::signal::Signal;
use lanefs_sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use lanefs_sync::{Arc, Condvar, Mutex, MutexGuard, thread};
use std::collections::VecDeque;

const CLOSED: u64 = 1 << 63;
const HANDLE: u64 = 1 << 43;
const CREDITS: u64 = HANDLE - 1;

fn handles(word: u64) -> u64 {
    (word & !CLOSED) / HANDLE
}

#[derive(Debug)]
struct Slot {
    word: AtomicU64,
    /// Changes only while no handle is inside.
    tid: AtomicU32,
    /// Credits of the transaction. May increase while it is open.
    limit: AtomicU32,
}

impl Slot {
    /// Subtracts a handle and its `unused` credits. Returns the word before that.
    fn take_out(&self, unused: u32) -> u64 {
        self.word.fetch_sub(HANDLE + u64::from(unused), Ordering::AcqRel)
    }
}

#[derive(Debug)]
pub(crate) struct Gate {
    slots: [Slot; 2],
    current: AtomicUsize,
    queue: Mutex<VecDeque<Sleeper>>,
    /// Length of the queue, readable without its lock. A thread that queues up increments it before
    /// its last look at the slots' words. A thread that makes room changes a word before it reads
    /// this.
    sleepers: AtomicUsize,
    /// Signals the committer that the closed slot is empty. Waited for with the queue's lock.
    drained: Condvar,
}

/// A thread that waits to enter.
#[derive(Debug)]
struct Sleeper {
    credits: u32,
    /// Receives the place that was taken for the thread; `None`: it must try again.
    signal: Arc<Signal<Option<Place>>>,
}

/// A handle's place in a transaction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) slot: usize,
    pub(crate) tid: Tid,
}

/// The load of the running transaction, and the number of threads in the queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inside {
    pub(crate) handles: u64,
    pub(crate) credits: u64,
    pub(crate) limit: u64,
    pub(crate) waiting: u64,
}

/// The reason why a thread could not enter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The transaction is closing; the next one will open.
    Closed,
    /// Not enough credits.
    Full {
        tid: Tid,
        /// There are open handles, which may return unused credits.
        inside: bool,
        /// The request does not fit although no credit is in use: the transaction's limit is too
        /// low.
        unused: bool,
    },
}

impl Gate {
    /// Returns an open gate to transaction `tid`, which has `limit` credits.
    pub(crate) fn new(tid: Tid, limit: u32) -> Self {
        let slot = |word| Slot {
            word: AtomicU64::new(word),
            tid: AtomicU32::new(tid.0),
            limit: AtomicU32::new(limit),
        };
        Self {
            slots: [slot(0), slot(CLOSED)],
            current: AtomicUsize::new(0),
            queue: Mutex::new(VecDeque::new()),
            sleepers: AtomicUsize::new(0),
            drained: Condvar::new(),
        }
    }

    fn slot(&self, index: usize) -> &Slot {
        &self.slots[index & 1]
    }

    /// Returns the running transaction.
    pub(crate) fn running(&self) -> Place {
        let slot = self.current.load(Ordering::Acquire);
        Place { slot, tid: Tid(self.slot(slot).tid.load(Ordering::Acquire)) }
    }

    /// Attempts once to enter. An error also says whether the caller must wake the committer.
    fn attempt(&self, n: u32) -> Result<Place, (Refused, bool)> {
        loop {
            let index = self.current.load(Ordering::Acquire);
            let slot = self.slot(index);
            let before = slot.word.fetch_add(HANDLE + u64::from(n), Ordering::AcqRel);
            let (tid, limit) = (Tid(slot.tid.load(Ordering::Acquire)), slot.limit.load(Ordering::Acquire));
            let fits = |used: u64| used + u64::from(n) <= u64::from(limit);
            if before & CLOSED == 0 && fits(before & CREDITS) {
                return Ok(Place { slot: index, tid });
            }
            // The reason comes from the word after this thread's subtraction: a handle that left in
            // between may have counted this thread as an open handle.
            let left = slot.take_out(n);
            let (used, inside) = ((left & CREDITS) - u64::from(n), handles(left) > 1);
            let closed = (before | left) & CLOSED != 0;
            if !closed && fits(used) {
                continue;
            }
            let why = if closed { Refused::Closed } else { Refused::Full { tid, inside, unused: used == 0 } };
            return Err((why, left & CLOSED != 0 && !inside));
        }
    }

    /// Enters the running transaction with `n` credits. Before each wait, calls `refused` with the
    /// reason why the first sleeper waits, so that it can request the commit or checkpoint that
    /// makes room. `refused` must not wait: another thread may admit the caller meanwhile, and a
    /// commit would wait for that place. An error of `refused` takes the caller out of the queue
    /// and is returned, unless the caller was admitted before.
    pub(crate) fn enter<E>(
        &self,
        n: u32,
        mut refused: impl FnMut(Refused) -> Result<(), E>,
    ) -> Result<Place, E> {
        if self.sleepers.load(Ordering::Acquire) == 0 {
            match self.attempt(n) {
                Ok(place) => return Ok(place),
                Err((_, true)) => self.wake_committer(),
                Err((_, false)) => {}
            }
        }
        loop {
            let signal = Arc::new(Signal::new());
            let mut queue = self.queue.lock();
            queue.push_back(Sleeper { credits: n, signal: Arc::clone(&signal) });
            self.sleepers.fetch_add(1, Ordering::AcqRel);
            // Either this thread sees the room that another thread makes, or that thread sees this
            // sleeper.
            fence(Ordering::SeqCst);
            if let Some(why) = self.admit(queue)
                && let Err(error) = refused(why)
                && self.gives_up(&signal)
            {
                return Err(error);
            }
            if let Some(place) = signal.wait() {
                return Ok(place);
            }
        }
    }

    /// Admits waiters from the front of the queue while they fit. Returns why the next one does
    /// not.
    fn admit(&self, mut queue: MutexGuard<'_, VecDeque<Sleeper>>) -> Option<Refused> {
        let mut places = Vec::new();
        let mut why = None;
        for sleeper in queue.iter() {
            match self.attempt(sleeper.credits) {
                Ok(place) => places.push(place),
                Err((refused, wake)) => {
                    if wake {
                        self.drained.notify_all();
                    }
                    why = Some(refused);
                    break;
                }
            }
        }
        let admitted: Vec<Sleeper> = queue.drain(..places.len()).collect();
        self.sleepers.fetch_sub(admitted.len(), Ordering::AcqRel);
        drop(queue);
        for (sleeper, place) in admitted.into_iter().zip(places) {
            sleeper.signal.send(Some(place));
        }
        why
    }

    /// Admits as [`admit`](Self::admit) does, but takes the lock only if a thread sleeps in the
    /// queue.
    fn admit_any(&self) -> Option<Refused> {
        if self.sleepers.load(Ordering::Acquire) == 0 { None } else { self.admit(self.queue.lock()) }
    }

    /// Removes a sleeper from the queue. Returns whether it was still there.
    fn gives_up(&self, signal: &Arc<Signal<Option<Place>>>) -> bool {
        let mut queue = self.queue.lock();
        let before = queue.len();
        queue.retain(|sleeper| !Arc::ptr_eq(&sleeper.signal, signal));
        let gone = before - queue.len();
        self.sleepers.fetch_sub(gone, Ordering::AcqRel);
        gone > 0
    }

    fn wake_committer(&self) {
        drop(self.queue.lock());
        self.drained.notify_all();
    }

    /// Leaves a transaction and returns `unused` credits to it. Returns why the first sleeper still
    /// does not fit.
    pub(crate) fn leave(&self, slot: usize, unused: u32) -> Option<Refused> {
        let before = self.slot(slot).take_out(unused);
        let last = handles(before) == 1;
        match before & CLOSED != 0 {
            true if last => {
                self.wake_committer();
                None
            }
            false if last || unused > 0 => self.admit_any(),
            _ => None,
        }
    }

    /// Takes `n` more credits for an open handle. Returns false if the transaction has fewer left.
    pub(crate) fn extend(&self, slot: usize, n: u32) -> bool {
        let slot = self.slot(slot);
        // The transient sum may keep another thread out. This handle admits the queue when it
        // leaves.
        let before = slot.word.fetch_add(u64::from(n), Ordering::AcqRel) & CREDITS;
        let fits = before + u64::from(n) <= u64::from(slot.limit.load(Ordering::Acquire));
        if !fits {
            slot.word.fetch_sub(u64::from(n), Ordering::AcqRel);
        }
        fits
    }

    /// Closes the running transaction and waits until no handle is inside. Only the committer calls
    /// it.
    pub(crate) fn close(&self) -> Place {
        let place = self.running();
        let slot = self.slot(place.slot);
        slot.word.fetch_or(CLOSED, Ordering::AcqRel);
        let mut queue = self.queue.lock();
        while handles(slot.word.load(Ordering::Acquire)) != 0 {
            self.drained.wait(&mut queue);
        }
        place
    }

    /// Opens the next transaction, after [`close`](Self::close). Returns why the first sleeper, if
    /// there is one, still waits.
    pub(crate) fn open_next(&self, tid: Tid, limit: u32) -> Option<Refused> {
        let next = 1 - self.current.load(Ordering::Acquire);
        let slot = self.slot(next);
        // No handle has entered this slot, so no thread relies on these.
        slot.tid.store(tid.0, Ordering::Release);
        slot.limit.store(limit, Ordering::Release);
        // Stored before the slot opens: a handle of the next transaction finds it to be the running
        // one.
        self.current.store(next, Ordering::Release);
        self.unlock(slot);
        fence(Ordering::SeqCst);
        self.admit_any()
    }

    /// Opens the closed transaction again, because it was empty. Returns why the first sleeper, if
    /// there is one, still waits.
    pub(crate) fn reopen(&self) -> Option<Refused> {
        self.unlock(self.slot(self.current.load(Ordering::Acquire)));
        // A thread that queues up may still look at the slot that was current before
        // `step_closed`, so the two do not meet in one word.
        fence(Ordering::SeqCst);
        self.admit_any()
    }

    /// Clears the closed flag and all credits of a slot, once no thread is between its addition and
    /// its subtraction.
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

    /// Makes transaction `tid` the running one, after [`close`](Self::close), and keeps it closed
    /// to all handles but those of [`enter_closed`](Self::enter_closed). [`reopen`](Self::reopen)
    /// opens it.
    pub(crate) fn step_closed(&self, tid: Tid, limit: u32) {
        let next = 1 - self.current.load(Ordering::Acquire);
        let slot = self.slot(next);
        slot.tid.store(tid.0, Ordering::Release);
        slot.limit.store(limit, Ordering::Release);
        self.current.store(next, Ordering::Release);
    }

    /// Enters the closed transaction with `n` credits, whatever its limit is. Only the committer
    /// calls it, after [`close`](Self::close); a later `close` waits until it has left.
    pub(crate) fn enter_closed(&self, n: u32) -> Place {
        let place = self.running();
        self.slot(place.slot).word.fetch_add(HANDLE + u64::from(n), Ordering::AcqRel);
        place
    }

    /// Raises the credit limit of the running transaction. Must not run while another thread opens
    /// a transaction. Returns why the first sleeper, if there is one, still waits.
    pub(crate) fn raise_limit(&self, limit: u32) -> Option<Refused> {
        self.slot(self.current.load(Ordering::Acquire)).limit.fetch_max(limit, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        self.admit_any()
    }

    /// Returns the load at this moment.
    pub(crate) fn inside(&self) -> Inside {
        let slot = self.slot(self.current.load(Ordering::Acquire));
        let word = slot.word.load(Ordering::Acquire);
        Inside {
            handles: handles(word),
            credits: word & CREDITS,
            limit: slot.limit.load(Ordering::Acquire).into(),
            waiting: self.sleepers.load(Ordering::Relaxed) as u64,
        }
    }

    /// Returns whether a thread sleeps in the queue.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.sleepers.load(Ordering::Relaxed) > 0
    }

    /// Wakes all sleepers, which then check for an error and try again.
    pub(crate) fn wake(&self) {
        let mut queue = self.queue.lock();
        let sleepers = std::mem::take(&mut *queue);
        self.sleepers.fetch_sub(sleepers.len(), Ordering::AcqRel);
        drop(queue);
        for sleeper in sleepers {
            sleeper.signal.send(None);
        }
    }
}

#[cfg(test)]
mod tests;
