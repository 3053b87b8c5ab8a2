//! The distribution of values, mostly times.

use crate::lane::{self, LANES};
use crate::snapshot::{BUCKETS, Snapshot, bucket_of};
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A histogram whose buckets are at most a quarter wide ([`Snapshot`]). Values that are times are
/// nanoseconds.
#[derive(Default)]
pub struct Histogram {
    /// One in `every` runs is timed; 0 and 1: all.
    every: u32,
    /// Made when a thread of that lane first records.
    lanes: [OnceLock<Box<Lane>>; LANES],
}

#[repr(align(128))]
struct Lane {
    buckets: [AtomicU64; BUCKETS],
    sum: AtomicU64,
    max: AtomicU64,
    /// Runs, where not all are timed.
    seen: AtomicU64,
    /// Runs begun less runs ended, where all are timed. One may end in another lane than it began
    /// in.
    running: AtomicU64,
}

impl Lane {
    fn new() -> Box<Self> {
        let zero = || AtomicU64::new(0);
        Box::new(Self {
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
            sum: zero(),
            max: zero(),
            seen: zero(),
            running: zero(),
        })
    }

    #[inline]
    fn put(&self, value: u64) {
        self.buckets[bucket_of(value)].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
        // A new maximum is rare; looking is cheaper than an atomic operation.
        if value > self.max.load(Ordering::Relaxed) {
            self.max.fetch_max(value, Ordering::Relaxed);
        }
    }
}

#[inline]
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Histogram {
    /// Returns an empty histogram that times every run.
    pub const fn new() -> Self {
        Self::sampled(1)
    }

    /// Returns an empty histogram that counts every run and times the first of each `every` in a
    /// lane: for runs of less than a microsecond, where reading the clock twice (about 50 ns) would
    /// show.
    pub const fn sampled(every: u32) -> Self {
        Self { every, lanes: [const { OnceLock::new() }; LANES] }
    }

    #[inline]
    fn lane(&self) -> &Lane {
        self.lanes[lane::lane()].get_or_init(Lane::new)
    }

    /// Records a value that the caller has measured. It counts as one run.
    #[inline]
    pub fn record(&self, value: u64) {
        let lane = self.lane();
        if self.every > 1 {
            lane.seen.fetch_add(1, Ordering::Relaxed);
        }
        lane.put(value);
    }

    /// Records the nanoseconds of `time`. It counts as one run.
    #[inline]
    pub fn record_time(&self, time: Duration) {
        self.record(nanos(time));
    }

    /// Runs `f` and records its time, also if it returns an error or panics.
    #[inline]
    pub fn time<R>(&self, f: impl FnOnce() -> R) -> R {
        let _timer = self.start();
        f()
    }

    /// Starts a run: it ends when the [`Timer`] is dropped.
    #[inline]
    pub fn start(&self) -> Timer<'_> {
        let every = u64::from(self.every);
        if every <= 1 {
            self.lane().running.fetch_add(1, Ordering::Relaxed);
            return Timer { histogram: self, since: Some(Instant::now()) };
        }
        let timed = self.lane().seen.fetch_add(1, Ordering::Relaxed).is_multiple_of(every);
        Timer { histogram: self, since: timed.then(Instant::now) }
    }

    /// Returns what has been recorded so far.
    pub fn snapshot(&self) -> Snapshot {
        let mut all = Snapshot { buckets: vec![0; BUCKETS], ..Snapshot::default() };
        for lane in self.lanes.iter().filter_map(OnceLock::get) {
            for (sum, bucket) in all.buckets.iter_mut().zip(&lane.buckets) {
                *sum = sum.wrapping_add(bucket.load(Ordering::Relaxed));
            }
            all.sum = all.sum.wrapping_add(lane.sum.load(Ordering::Relaxed));
            all.max = all.max.max(lane.max.load(Ordering::Relaxed));
            all.count = all.count.wrapping_add(lane.seen.load(Ordering::Relaxed));
            all.running = all.running.wrapping_add(lane.running.load(Ordering::Relaxed));
        }
        // Of a run that was handed to a thread of another lane, the end may be seen without the
        // beginning.
        all.running = all.running.cast_signed().max(0).cast_unsigned();
        all.timed = all.buckets.iter().fold(0, |sum, n| sum.wrapping_add(*n));
        if self.every <= 1 {
            all.count = all.timed;
        }
        all
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Histogram({self})")
    }
}

/// For values that are nanoseconds.
impl fmt::Display for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.snapshot().fmt(f)
    }
}

/// A run that is under way. Records its time when it is dropped.
#[derive(Debug)]
#[must_use = "dropped at once, it measures nothing"]
pub struct Timer<'a> {
    histogram: &'a Histogram,
    /// `None` in a run that is only counted.
    since: Option<Instant>,
}

impl Drop for Timer<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(since) = self.since {
            let lane = self.histogram.lane();
            lane.put(nanos(since.elapsed()));
            if self.histogram.every <= 1 {
                lane.running.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn threads_in_all_lanes_add_up() {
        let histogram = Histogram::new();
        let mut rounds = 0;
        // Lanes are given to the threads of other tests meanwhile.
        while !histogram.lanes.iter().all(|lane| lane.get().is_some()) {
            assert!(rounds < 1000, "a lane that nobody is given");
            rounds += 1;
            thread::scope(|scope| {
                for n in 1..=50 {
                    let histogram = &histogram;
                    scope.spawn(move || (0..100).for_each(|_| histogram.record(n)));
                }
            });
        }
        let all = histogram.snapshot();
        assert_eq!((all.count, all.timed, all.max), (rounds * 5000, rounds * 5000, 50));
        assert_eq!(all.sum, rounds * 100 * (1..=50).sum::<u64>());
    }

    #[test]
    fn a_run_is_timed_to_its_end() {
        let histogram = Histogram::new();
        assert_eq!(histogram.time(|| thread::sleep(Duration::from_millis(3))), ());
        let timer = histogram.start();
        let all = histogram.snapshot();
        assert_eq!((all.count, all.running), (1, 1), "the second has not ended");
        thread::scope(|scope| scope.spawn(move || drop(timer)).join().unwrap());
        let all = histogram.snapshot();
        assert_eq!((all.count, all.running), (2, 0));
        assert!(all.max >= 3_000_000, "{}", all.max);
        histogram.record_time(Duration::from_secs(3600));
        assert!(histogram.snapshot().max >= 3_600_000_000_000);
    }

    #[test]
    fn samples_count_all_and_time_some() {
        let histogram = Histogram::sampled(10);
        (0..95).for_each(|_| histogram.time(|| ()));
        histogram.record(7);
        let all = histogram.snapshot();
        assert_eq!((all.count, all.timed), (96, 11));
        assert!(all.to_string().starts_with("96 times (11 timed), mean "), "{all}");
    }
}
