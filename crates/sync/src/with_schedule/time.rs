//! Clocks: those of the session inside of one, and the system's outside.

use super::scheduler::{self, with};
use crate::real_time;
use std::ops::{Add, AddAssign, Sub};
use std::sync::OnceLock;
use std::time::Duration;

/// A moment, as [`std::time::Instant`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

/// 2017-07-14, when sessions begin.
const EPOCH: u64 = 1_500_000_000_000_000_000;

/// Returns nanoseconds since 1970.
pub fn realtime() -> u64 {
    let passed = with(|session, _| session.now() - scheduler::BEGINNING);
    passed.map_or_else(real_time::realtime, |passed| EPOCH + passed)
}

/// Returns nanoseconds since 1970 at the kernel's last tick: in a session, of a millisecond.
pub fn realtime_coarse() -> u64 {
    let passed = with(|session, _| session.now() - scheduler::BEGINNING);
    passed.map_or_else(real_time::realtime_coarse, |passed| EPOCH + passed / 1_000_000 * 1_000_000)
}

/// Returns nanoseconds since the system was started; in a session, since its beginning.
pub fn boottime() -> u64 {
    with(|session, _| session.now()).unwrap_or_else(real_time::boottime)
}

/// Returns nanoseconds since the first call.
fn outside() -> u64 {
    static BEGAN: OnceLock<std::time::Instant> = OnceLock::new();
    let passed = BEGAN.get_or_init(std::time::Instant::now).elapsed();
    scheduler::after(scheduler::BEGINNING, passed)
}

impl Instant {
    /// Returns the present moment.
    pub fn now() -> Self {
        Self(with(|session, _| session.now()).unwrap_or_else(outside))
    }

    pub(super) fn nanos(self) -> u64 {
        self.0
    }

    /// Returns the time since then.
    pub fn elapsed(self) -> Duration {
        Self::now().saturating_duration_since(self)
    }

    /// Returns the time since `earlier`, zero if that is later.
    pub fn saturating_duration_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Returns the time since `earlier` as
    /// [`saturating_duration_since`](Self::saturating_duration_since) does.
    pub fn duration_since(self, earlier: Self) -> Duration {
        self.saturating_duration_since(earlier)
    }

    /// Returns the time since `earlier`, unless that is later.
    pub fn checked_duration_since(self, earlier: Self) -> Option<Duration> {
        self.0.checked_sub(earlier.0).map(Duration::from_nanos)
    }

    /// Returns the moment `by` later, if there is one.
    pub fn checked_add(self, by: Duration) -> Option<Self> {
        self.0.checked_add(u64::try_from(by.as_nanos()).ok()?).map(Self)
    }

    /// Returns the moment `by` earlier, if there is one.
    pub fn checked_sub(self, by: Duration) -> Option<Self> {
        self.0.checked_sub(u64::try_from(by.as_nanos()).ok()?).map(Self)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;
    fn add(self, by: Duration) -> Self {
        Self(scheduler::after(self.0, by))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, by: Duration) {
        *self = *self + by;
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;
    fn sub(self, by: Duration) -> Self {
        self.checked_sub(by).unwrap_or(Self(0))
    }
}

impl Sub for Instant {
    type Output = Duration;
    fn sub(self, earlier: Self) -> Duration {
        self.saturating_duration_since(earlier)
    }
}
