//! Counters and timers of an open volume.
//!
//! Operations that take less than a microsecond are counted each time and timed once in [`RARELY`]:
//! reading the clock twice would slow them down. Waits for a device or another thread are timed
//! each time.

use lanefs_stats::{Counter, Histogram};

/// One in so many runs of a short path is timed.
const RARELY: u32 = 64;

/// The counters and timers that [`Stats`](crate::Stats) is read from.
#[derive(Debug)]
pub(crate) struct Counters {
    pub(crate) open: Histogram,
    pub(crate) read: Histogram,
    pub(crate) read_direct: Histogram,
    pub(crate) write: Histogram,
    pub(crate) write_direct: Histogram,
    pub(crate) fsync: Histogram,
    pub(crate) fdatasync: Histogram,
    pub(crate) load: Histogram,
    pub(crate) range_wait: Histogram,
    pub(crate) throttle: Histogram,
    pub(crate) reserve: Histogram,
    pub(crate) writeback: Histogram,
    /// Direct writes that were no overwrite: so an overwrite updates one counter only.
    pub(crate) planned: Counter,
    pub(crate) overwrites_journalled: Counter,
    pub(crate) versions_journalled: Counter,
    pub(crate) range_retries: Counter,
    pub(crate) space_retries: Counter,
    pub(crate) bytes_written_back: Counter,
}

impl Counters {
    /// Returns them on the heap: each has a pair of cache lines for each lane.
    pub(crate) fn new() -> Box<Self> {
        Box::new(Self {
            open: Histogram::new(),
            read: Histogram::sampled(RARELY),
            read_direct: Histogram::sampled(RARELY),
            write: Histogram::sampled(RARELY),
            write_direct: Histogram::sampled(RARELY),
            fsync: Histogram::new(),
            fdatasync: Histogram::new(),
            load: Histogram::new(),
            range_wait: Histogram::new(),
            throttle: Histogram::new(),
            reserve: Histogram::new(),
            writeback: Histogram::new(),
            planned: Counter::new(),
            overwrites_journalled: Counter::new(),
            versions_journalled: Counter::new(),
            range_retries: Counter::new(),
            space_retries: Counter::new(),
            bytes_written_back: Counter::new(),
        })
    }
}
