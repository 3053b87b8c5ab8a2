//! Which threads may have io_uring workers: the first few of a device that use its rings.
//!
//! The kernel gives each thread that submits a request which cannot be done at once a pool of workers of its own, and keeps one
//! of them for as long as the thread lives. So a program of many threads would have as many workers again. Here only
//! [`SUBMITTERS`] threads of a device may have some, and each at most [`WORKERS`]; every other thread submits with
//! RWF_NOWAIT, which the kernel never hands to a worker.
//!
//! A thread keeps its place until it ends, because its workers stay as long.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// Threads that may have workers.
pub(super) const SUBMITTERS: usize = 4;

/// Workers of one of those threads.
pub(super) const WORKERS: u32 = 4;

/// The places of one device.
#[derive(Debug, Default)]
pub(super) struct Submitters(Arc<AtomicUsize>);

/// A thread's place: given back when the thread ends.
struct Place {
    taken: Weak<AtomicUsize>,
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(taken) = self.taken.upgrade() {
            taken.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

thread_local! {
    /// The places of this thread, of each device that it has one of.
    static PLACES: RefCell<Vec<Place>> = const { RefCell::new(Vec::new()) };
}

impl Submitters {
    /// Returns whether the calling thread may have workers. The first [`SUBMITTERS`] threads that ask may.
    pub(super) fn admits_me(&self) -> bool {
        // A thread that is ending has no places any more, and gets none.
        let admitted = PLACES.try_with(|places| self.find_or_take(&mut places.borrow_mut()));
        admitted.unwrap_or(false)
    }

    fn find_or_take(&self, places: &mut Vec<Place>) -> bool {
        if places.iter().any(|place| place.taken.as_ptr() == Arc::as_ptr(&self.0)) {
            return true;
        }
        let next = |taken| (taken < SUBMITTERS).then_some(taken + 1);
        if self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_err() {
            return false;
        }
        // Devices that are closed leave no places behind.
        places.retain(|place| place.taken.strong_count() > 0);
        places.push(Place { taken: Arc::downgrade(&self.0) });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::thread;

    #[test]
    fn a_place_is_kept_by_its_thread_and_goes_with_it() {
        let (submitters, other) = (Submitters::default(), Submitters::default());
        let ask_twice = || {
            let admitted = submitters.admits_me();
            assert_eq!(submitters.admits_me(), admitted);
            assert!(other.admits_me());
            admitted
        };
        for _ in 0..3 {
            let together = Barrier::new(SUBMITTERS);
            thread::scope(|scope| {
                let threads: Vec<_> =
                    (0..SUBMITTERS).map(|_| scope.spawn(|| (ask_twice(), together.wait()))).collect();
                assert!(threads.into_iter().all(|t| t.join().unwrap().0));
            });
            // `join` waits for the places too: they go before the thread does.
            assert_eq!(submitters.0.load(Ordering::Relaxed), 0);
        }
        submitters.0.store(SUBMITTERS, Ordering::Relaxed);
        assert!(!submitters.admits_me());
    }
}
