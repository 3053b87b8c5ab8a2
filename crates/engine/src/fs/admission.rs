//! Threads that are inside of something: they are counted while they are, and the thread that ends
//! it refuses new ones and waits for the others.

use lanefs_stats::{LANES, lane};
use lanefs_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use lanefs_sync::{Condvar, Mutex, Padded};

/// The threads that are inside. Each counts in its lane, so that they share no cache line.
#[derive(Debug, Default)]
pub(super) struct Admission {
    refused: AtomicBool,
    inside: [Padded<AtomicUsize>; LANES],
    leaving: Mutex<()>,
    left: Condvar,
}

/// A thread that is inside until it drops this.
#[derive(Debug)]
pub(super) struct Admitted<'a> {
    admission: &'a Admission,
    lane: &'a AtomicUsize,
}

impl Admission {
    /// Lets the caller in; `None` once threads are refused.
    pub(super) fn enter(&self) -> Option<Admitted<'_>> {
        let lane = &*self.inside[lane()];
        // Counted before it looks: this thread sees the refusal, or the refusing one this thread.
        lane.fetch_add(1, Ordering::SeqCst);
        let admitted = Admitted { admission: self, lane };
        (!self.refuses()).then_some(admitted)
    }

    /// Returns whether threads are refused.
    pub(super) fn refuses(&self) -> bool {
        self.refused.load(Ordering::SeqCst)
    }

    /// Refuses all threads from now on, and waits for those that are inside.
    pub(super) fn refuse(&self) {
        self.refused.store(true, Ordering::SeqCst);
        let mut leaving = self.leaving.lock();
        // A thread that is refused counts for a moment too. No lane that was empty once gets a
        // thread that stays, so lanes that are empty one after the other are all empty.
        while self.inside.iter().map(|lane| lane.load(Ordering::SeqCst)).sum::<usize>() > 0 {
            self.left.wait(&mut leaving);
        }
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        self.lane.fetch_sub(1, Ordering::SeqCst);
        if self.admission.refuses() {
            let _leaving = self.admission.leaving.lock();
            self.admission.left.notify_all();
        }
    }
}
