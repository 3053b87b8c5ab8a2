//! The clock that a claim is measured by, and the waits of an open.

use lanefs_format::EXT4_MMP_SEQ_MAX;
use lanefs_sync::{thread, time};
use std::fmt::{self, Debug};
use std::sync::Arc;
use std::time::Duration;

/// A clock for multiple mount protection: for simulators, whose time passes when they say so.
pub trait MmpClock: Send + Sync + Debug {
    /// Returns the time since some beginning. It never goes back.
    fn now(&self) -> Duration;

    /// Waits for `time`.
    fn sleep(&self, time: Duration);

    /// Returns a number for the first sequence of a claim: random, for two hosts must not choose
    /// the same.
    fn random(&self) -> u32 {
        random()
    }
}

fn random() -> u32 {
    let bytes = uuid::Uuid::new_v4().into_bytes();
    u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]])
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

    /// Returns the first sequence of a claim: in the lower half, so that it never comes to the end.
    pub(super) fn first_sequence(&self) -> u32 {
        1 + self.0.as_ref().map_or_else(random, |clock| clock.random()) % (EXT4_MMP_SEQ_MAX / 2)
    }
}

/// What a program does when an open begins to wait.
pub(crate) type OnWait = dyn Fn(&super::MmpWait) + Send + Sync;

/// Called when an open begins to wait.
#[derive(Clone, Default)]
pub(crate) struct Waiting(pub(crate) Option<Arc<OnWait>>);

impl Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Waiting").field(&self.0.is_some()).finish()
    }
}
