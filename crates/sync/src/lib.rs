//! One face over synchronisation, threads, clocks and random numbers: those of std, of loom, and of
//! a seeded scheduler.
//!
//! Code written against this crate runs on parking_lot and std. Built with `--cfg loom` it runs
//! inside a loom model that tries the interleavings, and built with `--cfg lanefs_schedule` under a
//! scheduler that a seed decides for: whole volumes, with all of their threads. The locks have
//! parking_lot's shape: no poisoning, and [`Condvar::wait`] takes `&mut` of the guard. Under loom
//! nothing is `const`, and time does not pass: a timed wait only ends by a notification.
#![forbid(unsafe_code)]

mod int_map;
pub mod order;
mod padded;
pub mod real_time;

pub use int_map::{IntMap, IntSet};
pub use padded::Padded;

#[cfg(not(loom))]
pub mod cell;
#[cfg(loom)]
mod with_loom;
#[cfg(all(lanefs_schedule, not(loom)))]
mod with_schedule;
#[cfg(not(any(loom, lanefs_schedule)))]
mod with_std;

#[cfg(loom)]
pub use with_loom::*;
#[cfg(all(lanefs_schedule, not(loom)))]
pub use with_schedule::*;
#[cfg(not(any(loom, lanefs_schedule)))]
pub use with_std::*;

#[cfg(test)]
mod tests {
    use super::atomic::{AtomicU32, Ordering};
    use super::{Arc, Condvar, Mutex, RwLock, model, thread};

    #[test]
    fn a_waiter_is_woken() {
        model(|| {
            let shared = Arc::new((Mutex::new(false), Condvar::new()));
            let other = Arc::clone(&shared);
            let setter = thread::spawn(move || {
                *other.0.lock() = true;
                other.1.notify_one();
            });
            let mut ready = shared.0.lock();
            while !*ready {
                shared.1.wait(&mut ready);
            }
            drop(ready);
            setter.join().unwrap();
        });
    }

    #[test]
    fn a_writer_is_alone() {
        model(|| {
            let pair = Arc::new(RwLock::new((0, 0)));
            let other = Arc::clone(&pair);
            let writer = thread::spawn(move || {
                let mut pair = other.write();
                pair.0 += 1;
                thread::yield_now();
                pair.1 += 1;
            });
            {
                let pair = pair.read();
                assert_eq!(pair.0, pair.1);
            }
            writer.join().unwrap();
            assert_eq!(*pair.read(), (1, 1));
        });
    }

    #[test]
    fn try_lock_tells() {
        model(|| {
            let count = AtomicU32::new(0);
            let mutex = Mutex::new(());
            let held = mutex.lock();
            assert!(mutex.try_lock().is_none());
            drop(held);
            assert!(mutex.try_lock().is_some());
            assert_eq!(count.fetch_add(1, Ordering::Relaxed), 0);
        });
    }
}
