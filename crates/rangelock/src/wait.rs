//! A waiting request: the number of records that block it, and a place to sleep.
//!
//! Invariants: `blockers` changes only under the lock of the leaf (or the mutex) in which the
//! conflict is counted, and once it is zero it stays zero. The thread that takes it to zero clones
//! the `Arc` of the request, unlocks the leaf and then wakes the sleeper, so no leaf is locked
//! while a thread parks or is woken.
//!
//! Hazard: the sleeper checks `blockers` under `asleep`, and the waker locks `asleep` after its
//! decrement. Without either, a wake-up can be lost between the check and the sleep.

use lanefs_sync::atomic::{AtomicUsize, Ordering};
use lanefs_sync::time::Instant;
use lanefs_sync::{Arc, Condvar, Mutex, hint};
use std::time::Duration;

/// How often a waiter polls before it parks: enough for a hand-over between two running threads.
const LOOKS: usize = if cfg!(any(loom, lanefs_schedule)) { 0 } else { 100 };

#[derive(Debug)]
pub(crate) struct Request {
    blockers: AtomicUsize,
    asleep: Mutex<()>,
    wake: Condvar,
}

impl Request {
    pub(crate) fn new(blockers: usize) -> Arc<Self> {
        Arc::new(Self { blockers: AtomicUsize::new(blockers), asleep: Mutex::new(()), wake: Condvar::new() })
    }

    pub(crate) fn blockers(&self) -> usize {
        self.blockers.load(Ordering::Acquire)
    }

    /// Records that `now` records stand where `before` stood. True if that was the last of them:
    /// wake it.
    pub(crate) fn recount(&self, before: usize, now: usize) -> bool {
        if now > before {
            self.blockers.fetch_add(now - before, Ordering::Relaxed);
        } else if before > now {
            // Release: the holder's accesses come before the waiter's.
            return self.blockers.fetch_sub(before - now, Ordering::AcqRel) == before - now;
        }
        false
    }

    pub(crate) fn wake(&self) {
        let _asleep = self.asleep.lock();
        self.wake.notify_one();
    }

    /// Sleeps until nothing is in the way. False if that took longer than `patience`.
    pub(crate) fn wait(&self, patience: Option<Duration>) -> bool {
        for _ in 0..LOOKS {
            if self.blockers() == 0 {
                return true;
            }
            hint::spin_loop();
        }
        let until = patience.and_then(|p| Instant::now().checked_add(p));
        let mut asleep = self.asleep.lock();
        while self.blockers() != 0 {
            match until {
                None => self.wake.wait(&mut asleep),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return false;
                    }
                    self.wake.wait_for(&mut asleep, left);
                }
            }
        }
        true
    }
}

/// Requests that a change has granted. They are woken after the leaves are unlocked.
#[derive(Debug, Default)]
#[must_use = "they sleep until they are woken"]
pub(crate) struct Woken(Vec<Arc<Request>>);

impl Woken {
    pub(crate) fn push(&mut self, request: &Arc<Request>) {
        self.0.push(Arc::clone(request));
    }

    pub(crate) fn wake(self) {
        for request in self.0 {
            request.wake();
        }
    }
}
