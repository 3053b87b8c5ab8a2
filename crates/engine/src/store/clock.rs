//! The clock that stamps changes.
//!
//! The coarse clock is the kernel's tick: cheap, and equal for all changes of some milliseconds. A
//! fine stamp is later than every stamp before it, and no coarse stamp is earlier than a fine one.
//! With `by_tick`, all stamps are the tick's: the same that the kernel itself gives at that moment.
//!
//! A clock that is set back takes the stamps with it, as in the kernel. Set back by less than
//! [`BACK`], it stands until that has passed.

use lanefs_format::{Inode, Timestamp};
use lanefs_sync::atomic::{AtomicU64, Ordering};
use lanefs_sync::time::{realtime, realtime_coarse};

const NANOS: u64 = 1_000_000_000;

/// Where times come from.
#[derive(Debug)]
pub(crate) struct Clock {
    fixed: Option<Timestamp>,
    by_tick: bool,
    /// Inodes have no room for less than seconds.
    whole_seconds: bool,
    /// The last fine stamp.
    floor: AtomicU64,
}

impl Clock {
    /// Makes a clock that stands still at `fixed`, or follows the system's; with `by_tick`, its
    /// tick only.
    pub(crate) fn new(fixed: Option<Timestamp>, by_tick: bool, whole_seconds: bool) -> Self {
        Self { fixed, by_tick, whole_seconds, floor: AtomicU64::new(0) }
    }

    /// Returns the time for a change of an inode that is written with it.
    pub(crate) fn now(&self) -> Timestamp {
        // As fine as the stamps of writes: the times of one file do not go back.
        self.fixed.unwrap_or_else(|| {
            let nanos = self.fine();
            Timestamp { sec: (nanos / NANOS) as i64, nsec: (nanos % NANOS) as u32 }
        })
    }

    /// Nanoseconds since 1970, by the tick.
    pub(crate) fn coarse(&self) -> u64 {
        match self.fixed {
            Some(at) => of_timestamp(at),
            None => {
                // The floor first: a thread that is stopped in between does not see the clock go
                // back.
                let floor = self.floor.load(Ordering::Acquire);
                self.cut(not_before(realtime_coarse().max(LEAST), floor))
            }
        }
    }

    /// Nanoseconds since 1970, later than every stamp given before, unless the clock was set back.
    pub(crate) fn fine(&self) -> u64 {
        if let Some(at) = self.fixed {
            return of_timestamp(at);
        }
        if self.by_tick {
            return self.coarse();
        }
        let mut stamp = 0;
        let later = |floor: u64| {
            stamp = not_before(realtime().max(LEAST), floor + 1);
            Some(stamp)
        };
        let _ = self.floor.fetch_update(Ordering::AcqRel, Ordering::Acquire, later);
        self.cut(stamp)
    }

    /// Rounds the times of `inode` to what it can hold.
    pub(crate) fn round(&self, inode: &mut Inode) {
        if self.whole_seconds {
            (inode.atime.nsec, inode.mtime.nsec, inode.ctime.nsec) = (0, 0, 0);
        }
    }

    fn cut(&self, nanos: u64) -> u64 {
        if self.whole_seconds { nanos / NANOS * NANOS } else { nanos }
    }
}

/// Nanoseconds by which stamps may be ahead of the clock: far more than a tick.
const BACK: u64 = NANOS;

/// Returns the time `now`, but not before `floor`, unless the clock was set back since.
fn not_before(now: u64, floor: u64) -> u64 {
    if floor.saturating_sub(now) < BACK { now.max(floor) } else { now }
}

/// The smallest time that is returned: smaller numbers mean no time.
const LEAST: u64 = 2;

fn of_timestamp(at: Timestamp) -> u64 {
    (at.sec.max(0) as u64).saturating_mul(NANOS).saturating_add(u64::from(at.nsec)).max(LEAST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fine_stamps_grow_and_coarse_ones_do_not_fall_behind() {
        let clock = Clock::new(None, false, false);
        let mut last = 0;
        for _ in 0..1000 {
            let fine = clock.fine();
            assert!(fine > last && clock.coarse() >= fine);
            last = fine;
        }
    }

    #[test]
    fn by_the_tick_all_stamps_are_the_kernels() {
        let clock = Clock::new(None, true, false);
        let mut seen = 0;
        for _ in 0..1000 {
            let before = realtime_coarse().max(LEAST);
            let stamps = [clock.fine(), clock.coarse(), of_timestamp(clock.now())];
            let after = realtime_coarse().max(LEAST);
            assert!(before != after || stamps == [before; 3]);
            seen += usize::from(before == after);
        }
        assert!(seen > 0);
    }

    #[test]
    fn a_clock_that_is_set_back_goes_on() {
        let clock = Clock::new(None, false, false);
        let now = realtime();
        // As if the clock had been an hour ahead when the last stamp was given.
        clock.floor.store(now + 3600 * NANOS, Ordering::Relaxed);
        assert!(clock.coarse() < now + 1800 * NANOS);
        let fine = clock.fine();
        assert!(fine >= now && fine < now + 1800 * NANOS);
        assert!(clock.fine() > fine && clock.coarse() >= fine);
        // No more than a leap backwards of the moment: the stamps stay in order.
        assert_eq!(not_before(now, now + BACK - 1), now + BACK - 1);
        assert_eq!(not_before(now, now + BACK), now);
    }

    #[test]
    fn a_fixed_clock_stands() {
        let clock = Clock::new(Some(Timestamp { sec: 7, nsec: 9 }), false, false);
        assert_eq!((clock.coarse(), clock.fine()), (7 * NANOS + 9, 7 * NANOS + 9));
    }
}
