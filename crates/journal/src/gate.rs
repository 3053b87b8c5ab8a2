//! The gate to the running transaction: starting a handle is one atomic add.
//!
//! There are two slots, and transactions take turns in them. A slot's word packs a closed flag, the
//! number of handles inside, and the credits that they hold or have used. To enter, a thread adds
//! one handle and its credits to the current slot's word, and looks at what was there before: open,
//! and credits left, and it is in. Otherwise it takes the sum away again and queues up.
//!
//! **The queue** is first come, first served, and while anybody is in it nobody passes by. Sleepers
//! are let in by who makes room: who opens a transaction or raises its limit, and who leaves with
//! credits that it has not used. They enter on the sleeper's behalf and wake it when it is inside,
//! so only those wake up who can go on. If the first in the queue does not fit, credits of the
//! handles inside may still come back; when the last of them has left and it still does not fit, a
//! commit must help ([`Refused::Full`]), and that is told to the thread that finds it.
//!
//! The committer closes the slot, waits until the last handle has left, and opens the other slot
//! for the next transaction; only then the next handles run. So there is never a handle in two
//! transactions at a time, and what a closed transaction changed is final when the next one starts.
//!
//! A thread may still be between its add and its subtraction when the slot is used again: it then
//! is simply in the newer transaction, or leaves it as anybody would. That is why an open or closed
//! slot is never stored to, only added to; opening is a compare-exchange that waits until nobody is
//! inside. Who takes the handle count of a closed slot to zero wakes the committer, in either case.
//! Such a thread may also be why another one did not fit; but it goes on to the queue and looks for
//! all of them again.
//!
//! Sums cannot run over: credits have 43 bits, handles 20.

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
    /// Changes only while nobody is inside.
    tid: AtomicU32,
    /// Credits of the transaction. May grow while it is open.
    limit: AtomicU32,
}

impl Slot {
    /// Takes a handle out. What was there before.
    fn take_out(&self, unused: u32) -> u64 {
        self.word.fetch_sub(HANDLE + u64::from(unused), Ordering::AcqRel)
    }
}

#[derive(Debug)]
pub(crate) struct Gate {
    slots: [Slot; 2],
    current: AtomicUsize,
    queue: Mutex<VecDeque<Sleeper>>,
    /// Length of the queue, for who does not want to lock it. Who queues up counts itself before it
    /// looks at the words for the last time; who makes room changes a word before it looks here.
    sleepers: AtomicUsize,
    /// A closed slot is empty. Waited for with the queue's lock.
    drained: Condvar,
}

/// Who waits to enter.
#[derive(Debug)]
struct Sleeper {
    credits: u32,
    /// The place that was taken for it; `None`: try again.
    signal: Arc<Signal<Option<Place>>>,
}

/// A handle's place in a transaction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) slot: usize,
    pub(crate) tid: Tid,
}

/// What is inside of the running transaction, and before the gate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inside {
    pub(crate) handles: u64,
    pub(crate) credits: u64,
    pub(crate) limit: u64,
    pub(crate) waiting: u64,
}

/// Why a thread could not enter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The transaction is closing; the next one comes.
    Closed,
    /// Not enough credits.
    Full {
        tid: Tid,
        /// There are handles inside, and credits that they do not use come back.
        inside: bool,
        /// Not even with all credits of the transaction: it has too few.
        unused: bool,
    },
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
            queue: Mutex::new(VecDeque::new()),
            sleepers: AtomicUsize::new(0),
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
        loop {
            let index = self.current.load(Ordering::Acquire);
            let slot = self.slot(index);
            let before = slot.word.fetch_add(HANDLE + u64::from(n), Ordering::AcqRel);
            let (tid, limit) = (Tid(slot.tid.load(Ordering::Acquire)), slot.limit.load(Ordering::Acquire));
            let fits = |used: u64| used + u64::from(n) <= u64::from(limit);
            if before & CLOSED == 0 && fits(before & CREDITS) {
                return Ok(Place { slot: index, tid });
            }
            // The reasons are as of now: who left meanwhile may have taken us for one that is
            // inside.
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

    /// Enters the running transaction with `n` credits. Before each wait, `refused` is told why the
    /// first in the queue waits, to set that in motion which will let it in; it must not wait
    /// itself.
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
            // Either what is looked at from here on is new, or who makes it so sees this sleeper.
            fence(Ordering::SeqCst);
            if let Some(why) = self.admit(queue)
                && let Err(error) = refused(why)
            {
                if !self.gives_up(&signal)
                    && let Some(place) = signal.wait()
                {
                    self.leave(place.slot, n);
                }
                return Err(error);
            }
            if let Some(place) = signal.wait() {
                return Ok(place);
            }
        }
    }

    /// Lets in who fits, from the front of the queue. Why the first of the rest does not.
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

    /// As [`admit`](Self::admit), if anybody sleeps.
    fn admit_any(&self) -> Option<Refused> {
        if self.sleepers.load(Ordering::Acquire) == 0 { None } else { self.admit(self.queue.lock()) }
    }

    /// Takes a sleeper out of the queue; whether it was still there.
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

    /// Leaves a transaction and gives `unused` credits back. Why the first in the queue cannot use
    /// them.
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

    /// Takes `n` more credits for a handle inside, if there are that many.
    pub(crate) fn extend(&self, slot: usize, n: u32) -> bool {
        let slot = self.slot(slot);
        // Who is kept out by this for a moment is looked for when this handle leaves.
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
        let mut queue = self.queue.lock();
        while handles(slot.word.load(Ordering::Acquire)) != 0 {
            self.drained.wait(&mut queue);
        }
        place
    }

    /// Opens the next transaction, after [`close`](Self::close). Why somebody still waits.
    pub(crate) fn open_next(&self, tid: Tid, limit: u32) -> Option<Refused> {
        let next = 1 - self.current.load(Ordering::Acquire);
        let slot = self.slot(next);
        // Nobody is inside for good, so nobody relies on these.
        slot.tid.store(tid.0, Ordering::Release);
        slot.limit.store(limit, Ordering::Release);
        // Before it is open: who is in the next transaction finds it to be the running one.
        self.current.store(next, Ordering::Release);
        self.unlock(slot);
        fence(Ordering::SeqCst);
        self.admit_any()
    }

    /// Opens the closed transaction again: it turned out to be empty. Why somebody still waits.
    pub(crate) fn reopen(&self) -> Option<Refused> {
        self.unlock(self.slot(self.current.load(Ordering::Acquire)));
        self.admit_any()
    }

    /// Takes the closed flag and all credits off a slot, once nobody is between add and
    /// subtraction.
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

    /// Raises the credits of the running transaction. Not while another thread opens one. Why
    /// somebody still waits.
    pub(crate) fn raise_limit(&self, limit: u32) -> Option<Refused> {
        self.slot(self.current.load(Ordering::Acquire)).limit.fetch_max(limit, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        self.admit_any()
    }

    /// What is there at this moment.
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

    /// Whether anybody sleeps in the queue.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.sleepers.load(Ordering::Relaxed) > 0
    }

    /// Lets all who wait to enter look again.
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
