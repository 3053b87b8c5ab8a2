//! A number that many threads add to.

use crate::lane::{self, LANES, Padded};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// A sum that starts at zero and only grows; it wraps beyond 64 bits.
#[derive(Debug)]
pub struct Counter([Padded<AtomicU64>; LANES]);

impl Counter {
    /// Returns a counter at zero.
    pub const fn new() -> Self {
        Self([const { Padded(AtomicU64::new(0)) }; LANES])
    }

    /// Adds `n`.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0[lane::lane()].0.fetch_add(n, Ordering::Relaxed);
    }

    /// Returns the sum of what was added.
    pub fn get(&self) -> u64 {
        self.0.iter().fold(0, |sum, lane| sum.wrapping_add(lane.0.load(Ordering::Relaxed)))
    }
}

impl Default for Counter {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn many_threads_add_up() {
        static COUNTER: Counter = Counter::new();
        thread::scope(|scope| {
            for n in 0..40 {
                scope.spawn(move || (0..1000).for_each(|_| COUNTER.add(n)));
            }
        });
        assert_eq!(COUNTER.get(), 1000 * (0..40).sum::<u64>());
        assert_eq!(COUNTER.to_string(), "780000");
    }

    #[test]
    fn lanes_share_no_line() {
        let counter = Counter::new();
        let at = |i: usize| std::ptr::from_ref(&counter.0[i]).addr();
        assert_eq!(at(0) % 128, 0);
        assert_eq!(at(1) - at(0), 128);
    }
}
