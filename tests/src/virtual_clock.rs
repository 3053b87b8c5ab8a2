//! A clock of multiple mount protection for hosts that do not wait.

use lanefs::MmpClock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A clock whose time passes when its host sleeps, and not else.
#[derive(Debug, Default)]
pub struct VirtualClock {
    nanos: AtomicU64,
    /// The number that every claim begins with, for volumes that are the same in each run.
    fixed: Option<u32>,
}

impl VirtualClock {
    /// Returns a clock by which every claim begins with the same number: for one host.
    pub fn of_one_host() -> Self {
        Self { fixed: Some(1), ..Self::default() }
    }
}

impl MmpClock for VirtualClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Ordering::Relaxed))
    }

    fn sleep(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    fn random(&self) -> u32 {
        // Of the hosts of one process each has its own.
        static LAST: AtomicU64 = AtomicU64::new(0);
        self.fixed.unwrap_or_else(|| (LAST.fetch_add(1, Ordering::Relaxed) as u32).wrapping_mul(0x9E37_79B9))
    }
}
