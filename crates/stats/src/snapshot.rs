//! A copy of a histogram at one time, and the buckets that it counts in.
//!
//! Buckets are logarithmic with four steps to each power of two: 0, 1, 2, 3, then 4, 5, 6, 7, then
//! 8..=9, 10..=11, 12..=13, 14..=15, and so on to the end of 64 bits. A bucket is at most a quarter
//! as wide as its smallest value is large.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

/// Buckets that cover 64 bits.
pub(crate) const BUCKETS: usize = 252;

/// Returns the bucket that `value` is counted in.
#[inline]
pub(crate) fn bucket_of(value: u64) -> usize {
    if value < 4 {
        return value as usize;
    }
    let power = value.ilog2();
    let step = (value >> (power - 2)) & 3;
    (power as usize - 1) * 4 + step as usize
}

/// Returns the values that bucket `index` counts.
fn values_of(index: usize) -> RangeInclusive<u64> {
    let index = index as u64;
    if index < 4 {
        return index..=index;
    }
    let shift = index / 4 - 1;
    let first = (4 + index % 4) << shift;
    first..=first + ((1 << shift) - 1)
}

/// A bucket that is not empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    /// The values that it counts.
    pub values: RangeInclusive<u64>,
    /// How many it has counted.
    pub count: u64,
}

/// The content of a [`Histogram`](crate::Histogram) at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// What happened: every value recorded, and every run of a sampled histogram whether it was
    /// timed or not.
    pub count: u64,
    /// Values recorded. Less than `count` where only samples are timed.
    pub timed: u64,
    /// Runs that have begun and not ended. 0 where only samples are timed.
    pub running: u64,
    /// The sum of the recorded values.
    pub sum: u64,
    /// The largest recorded value; 0 without any.
    pub max: u64,
    /// Empty or `BUCKETS` long.
    pub(crate) buckets: Vec<u64>,
}

impl Snapshot {
    /// Returns the mean of the recorded values; 0 without any.
    pub fn mean(&self) -> u64 {
        self.sum.checked_div(self.timed).unwrap_or(0)
    }

    /// Returns a value that at least the share `q` (0.0 to 1.0) of the recorded values does not
    /// exceed: the end of the bucket that the true quantile lies in, so not below it and at most a
    /// quarter above. 0 without any values.
    pub fn quantile(&self, q: f64) -> u64 {
        // As floats go: a count beyond 2^53 is rounded, which no quantile shows.
        let rank = (q.clamp(0.0, 1.0) * self.timed as f64).ceil().max(1.0) as u64;
        let mut seen = 0u64;
        for (index, count) in self.buckets.iter().enumerate() {
            seen = seen.saturating_add(*count);
            if seen >= rank {
                return (*values_of(index).end()).min(self.max);
            }
        }
        self.max
    }

    /// Returns the buckets that counted something, smallest values first.
    pub fn buckets(&self) -> impl Iterator<Item = Bucket> + '_ {
        let filled = self.buckets.iter().enumerate().filter(|(_, count)| **count > 0);
        filled.map(|(index, &count)| Bucket { values: values_of(index), count })
    }

    /// Adds what another histogram held.
    pub fn merge(&mut self, other: &Self) {
        self.count = self.count.wrapping_add(other.count);
        self.timed = self.timed.wrapping_add(other.timed);
        self.running = self.running.wrapping_add(other.running);
        self.sum = self.sum.wrapping_add(other.sum);
        self.max = self.max.max(other.max);
        self.buckets.resize(BUCKETS, 0);
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine = mine.wrapping_add(*theirs);
        }
    }
}

/// For values that are nanoseconds.
impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} times", self.count)?;
        if self.timed == 0 {
            return Ok(());
        }
        if self.timed != self.count {
            write!(f, " ({} timed)", self.timed)?;
        }
        let named = [("mean", self.mean()), ("p50", self.quantile(0.5)), ("p99", self.quantile(0.99))];
        for (name, nanos) in named.into_iter().chain([("max", self.max)]) {
            write!(f, ", {name} {:.3?}", Duration::from_nanos(nanos))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_cover_every_value_once_and_are_narrow() {
        let mut next = 0u64;
        for index in 0..BUCKETS {
            let values = values_of(index);
            assert_eq!(*values.start(), next, "bucket {index}");
            assert_eq!(bucket_of(*values.start()), index);
            assert_eq!(bucket_of(*values.end()), index);
            assert!(values.end() - values.start() <= values.start() / 4, "bucket {index}");
            next = values.end().wrapping_add(1);
        }
        assert_eq!(next, 0, "the last bucket ends with the last value");
    }

    fn of(values: &[u64]) -> Snapshot {
        let histogram = crate::Histogram::new();
        values.iter().for_each(|v| histogram.record(*v));
        histogram.snapshot()
    }

    #[test]
    fn quantiles_are_within_a_quarter() {
        let values: Vec<u64> = (1..=10_000).map(|i| i * 37).collect();
        let snapshot = of(&values);
        for (q, exact) in [(0.0, 37), (0.5, 5000 * 37), (0.99, 9900 * 37), (0.999, 9990 * 37)] {
            let found = snapshot.quantile(q);
            assert!((exact..=exact + exact / 4).contains(&found), "{q}: {found}, exact {exact}");
        }
        assert_eq!(snapshot.quantile(1.0), 370_000);
        assert_eq!(snapshot.mean(), values.iter().sum::<u64>() / 10_000);
    }

    #[test]
    fn an_empty_one_is_all_zeros() {
        let snapshot = Snapshot::default();
        assert_eq!((snapshot.quantile(0.5), snapshot.mean(), snapshot.buckets().count()), (0, 0, 0));
        assert_eq!(snapshot.to_string(), "0 times");
    }

    #[test]
    fn merged_is_as_if_recorded_together() {
        let (a, b) = ([1, 5, 5, 1 << 40], [0, 7, u64::MAX / 2]);
        let mut merged = Snapshot::default();
        merged.merge(&of(&a));
        merged.merge(&of(&b));
        assert_eq!(merged, of(&[a.as_slice(), &b].concat()));
        let fives = merged.buckets().find(|bucket| bucket.values.contains(&5));
        assert_eq!(fives, Some(Bucket { values: 5..=5, count: 2 }));
    }

    #[test]
    fn printed_as_times() {
        assert_eq!(
            of(&[1000, 1000, 2_000_000]).to_string(),
            "3 times, mean 667.333µs, p50 1.023µs, p99 2.000ms, max 2.000ms"
        );
    }
}
