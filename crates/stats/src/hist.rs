//! A histogram that is kept in a file: the counts of a [`Histogram`](crate::Histogram), or those
//! that a publication gives.

use crate::Snapshot;
use std::collections::BTreeMap;

/// Values, mostly nanoseconds, by bucket.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Hist {
    /// Operations, timed or not.
    pub count: u64,
    /// Operations that were timed.
    pub timed: u64,
    /// Of the values that were timed.
    pub sum: u64,
    /// No value is larger.
    pub max: u64,
    /// First value, last value and count of each bucket that is not empty, smallest first.
    pub buckets: Vec<(u64, u64, u64)>,
}

impl From<&Snapshot> for Hist {
    fn from(of: &Snapshot) -> Self {
        let buckets = of.buckets().map(|b| (*b.values.start(), *b.values.end(), b.count)).collect();
        Self { count: of.count, timed: of.timed, sum: of.sum, max: of.max, buckets }
    }
}

impl Hist {
    /// Sums a histogram up from buckets alone; values are taken to lie in the middle of theirs.
    pub fn of_buckets(buckets: &[(u64, u64, u64)]) -> Self {
        let buckets: Vec<_> = buckets.iter().copied().filter(|b| b.2 > 0).collect();
        let count = buckets.iter().map(|b| b.2).sum();
        let sum = buckets.iter().map(|(from, to, n)| from.midpoint(*to).saturating_mul(*n)).sum();
        Self { count, timed: count, sum, max: buckets.last().map_or(0, |b| b.1), buckets }
    }

    /// Returns the values that were recorded since `before`, an earlier state of this histogram.
    pub fn since(&self, before: &Self) -> Self {
        let old: BTreeMap<u64, u64> = before.buckets.iter().map(|(from, _, n)| (*from, *n)).collect();
        let left = |&(from, to, n): &(u64, u64, u64)| {
            let n = n.saturating_sub(old.get(&from).copied().unwrap_or(0));
            (n > 0).then_some((from, to, n))
        };
        let buckets: Vec<_> = self.buckets.iter().filter_map(left).collect();
        Self {
            count: self.count.saturating_sub(before.count),
            timed: self.timed.saturating_sub(before.timed),
            sum: self.sum.saturating_sub(before.sum),
            max: buckets.last().map_or(0, |b| b.1.min(self.max)),
            buckets,
        }
    }

    /// Adds what another one counted.
    pub fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.timed += other.timed;
        self.sum = self.sum.saturating_add(other.sum);
        self.max = self.max.max(other.max);
        let mut all: BTreeMap<(u64, u64), u64> = BTreeMap::new();
        for (from, to, n) in self.buckets.iter().chain(&other.buckets) {
            *all.entry((*from, *to)).or_default() += n;
        }
        self.buckets = all.into_iter().map(|((from, to), n)| (from, to, n)).collect();
    }

    /// Returns a value that the share `q` of all values does not exceed; 0 without values.
    pub fn quantile(&self, q: f64) -> u64 {
        let rank = (q * self.timed as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (_, to, n) in &self.buckets {
            seen += n;
            if seen >= rank {
                return (*to).min(self.max);
            }
        }
        self.max
    }

    /// Returns the sum of all values. Operations that were not timed count as the average of the
    /// others.
    pub fn total(&self) -> f64 {
        if self.timed == 0 { 0.0 } else { self.sum as f64 / self.timed as f64 * self.count as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Histogram;

    #[test]
    fn since_and_merge_undo_each_other() {
        let live = Histogram::new();
        (1..1000).for_each(|n| live.record(n * 77));
        let before = Hist::from(&live.snapshot());
        (1..500).for_each(|n| live.record(n * 31));
        let after = Hist::from(&live.snapshot());
        let more = after.since(&before);
        assert_eq!(more.count, 499);
        assert_eq!(more.sum, 31 * 499 * 500 / 2);
        let mut both = before;
        both.merge(&more);
        assert_eq!(both, after);
        assert_eq!(after.quantile(0.5), live.snapshot().quantile(0.5));
    }

    #[test]
    fn of_published_buckets() {
        let hist = Hist::of_buckets(&[(0, 1, 4), (2, 3, 0), (4, 7, 4)]);
        assert_eq!((hist.count, hist.max, hist.quantile(0.5), hist.quantile(0.9)), (8, 7, 1, 7));
    }
}
