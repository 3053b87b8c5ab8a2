//! Latencies of which each is kept.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// The nanoseconds of each of some operations. Quantiles are exact: the buckets of a
/// [`lanefs_stats::Histogram`] are a quarter wide, more than the difference that a target asks for.
#[derive(Debug, Clone)]
pub struct Latencies(Vec<u64>);

impl Default for Latencies {
    fn default() -> Self {
        Self::new()
    }
}

impl Latencies {
    /// Returns no latencies, with room for some thousands: a short loop allocates no more.
    pub fn new() -> Self {
        Self(Vec::with_capacity(1 << 12))
    }

    /// Runs `f` and records its time, also if it returns an error.
    #[inline]
    pub fn time<R>(&mut self, f: impl FnOnce() -> R) -> R {
        let began = Instant::now();
        let done = f();
        self.0.push(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
        done
    }

    /// Adds the latencies of one thread to those of `all`.
    pub fn add_to(self, all: &Mutex<Self>) {
        all.lock().unwrap_or_else(PoisonError::into_inner).0.extend(self.0);
    }

    /// Returns the latencies that all threads have added.
    pub fn of_all(all: Mutex<Self>) -> Self {
        all.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the milliseconds that the share `q` of the latencies do not exceed; 0 of none.
    pub fn ms(&mut self, q: f64) -> f64 {
        let rank = (q * self.0.len() as f64).ceil().max(1.0) as usize;
        match rank.min(self.0.len()) {
            0 => 0.0,
            rank => *self.0.select_nth_unstable(rank - 1).1 as f64 / 1e6,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_recorded() {
        let mut latencies = Latencies((1..=1000).rev().map(|ms| ms * 1_000_000).collect());
        assert_eq!([0.5, 0.99, 0.999, 1.0].map(|q| latencies.ms(q)), [500.0, 990.0, 999.0, 1000.0]);
        assert_eq!(Latencies::new().ms(0.5), 0.0);
    }
}
