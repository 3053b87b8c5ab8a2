//! The clock that a claim is measured by, and the waits of an open.

use lanefs_sync::{thread, time};
use std::fmt::{self, Debug};
use std::sync::Arc;
use std::time::Duration;

/// A clock for multiple mount protection: for simulators, whose time passes when they say so.
pub trait MmpClock: Send + Sync + Debug {
    /// Returns the time since some beginning. It never goes back.
    fn now(&self) -> Duration;

    /// Waits.
    fn sleep(&self, time: Duration);
}

/// The clock of this host: CLOCK_BOOTTIME, which goes on while the host is suspended; or that of a
/// simulator.
#[derive(Debug, Clone, Default)]
pub(crate) struct HostClock(Option<Arc<dyn MmpClock>>);

impl HostClock {
    pub(crate) fn simulated(clock: Arc<dyn MmpClock>) -> Self {
        Self(Some(clock))
    }

    pub(crate) fn now(&self) -> Duration {
        match &self.0 {
            None => Duration::from_nanos(time::boottime()),
            Some(clock) => clock.now(),
        }
    }

    pub(crate) fn sleep(&self, time: Duration) {
        match &self.0 {
            None => thread::sleep(time),
            Some(clock) => clock.sleep(time),
        }
    }
}

/// Called when an open begins to wait.
#[derive(Clone, Default)]
pub(crate) struct Waiting(pub(crate) Option<Arc<dyn Fn(&super::MmpWait) + Send + Sync>>);

impl Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Waiting").field(&self.0.is_some()).finish()
    }
}
